// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace reshard::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

/// Finds functions, and remembers the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <class F>
  void find(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library_, symbol));
    if (function == nullptr && missing_ == nullptr) missing_ = symbol;
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

void find_devices(Finder& in, Driver& d) {
  in.find(d.cuInit, "cuInit");
  in.find(d.cuDriverGetVersion, "cuDriverGetVersion");
  in.find(d.cuGetErrorName, "cuGetErrorName");
  in.find(d.cuGetErrorString, "cuGetErrorString");
  in.find(d.cuDeviceGetCount, "cuDeviceGetCount");
  in.find(d.cuDeviceGet, "cuDeviceGet");
  in.find(d.cuDeviceGetName, "cuDeviceGetName");
  in.find(d.cuDeviceGetAttribute, "cuDeviceGetAttribute");
  in.find(d.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  in.find(d.cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  in.find(d.cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  in.find(d.cuCtxPopCurrent, "cuCtxPopCurrent_v2");
}

void find_memory(Finder& in, Driver& d) {
  in.find(d.cuPointerGetAttribute, "cuPointerGetAttribute");
  in.find(d.cuMemGetInfo, "cuMemGetInfo_v2");
  in.find(d.cuMemAlloc, "cuMemAlloc_v2");
  in.find(d.cuMemFree, "cuMemFree_v2");
  in.find(d.cuMemHostAlloc, "cuMemHostAlloc");
  in.find(d.cuMemFreeHost, "cuMemFreeHost");
  in.find(d.cuMemHostRegister, "cuMemHostRegister_v2");
  in.find(d.cuMemHostUnregister, "cuMemHostUnregister");
  in.find(d.cuMemcpyAsync, "cuMemcpyAsync");
  in.find(d.cuMemsetD8Async, "cuMemsetD8Async");
}

void find_work(Finder& in, Driver& d) {
  in.find(d.cuStreamCreate, "cuStreamCreate");
  in.find(d.cuStreamDestroy, "cuStreamDestroy_v2");
  in.find(d.cuStreamQuery, "cuStreamQuery");
  in.find(d.cuStreamSynchronize, "cuStreamSynchronize");
  in.find(d.cuStreamWaitEvent, "cuStreamWaitEvent");
  in.find(d.cuEventCreate, "cuEventCreate");
  in.find(d.cuEventDestroy, "cuEventDestroy_v2");
  in.find(d.cuEventRecord, "cuEventRecord");
  in.find(d.cuEventQuery, "cuEventQuery");
  in.find(d.cuEventSynchronize, "cuEventSynchronize");
  in.find(d.cuEventElapsedTime, "cuEventElapsedTime");
  in.find(d.cuModuleLoadData, "cuModuleLoadData");
  in.find(d.cuModuleUnload, "cuModuleUnload");
  in.find(d.cuModuleGetFunction, "cuModuleGetFunction");
  in.find(d.cuFuncSetAttribute, "cuFuncSetAttribute");
  in.find(d.cuLaunchKernel, "cuLaunchKernel");
}

void find_sharing(Finder& in, Driver& d) {
  in.find(d.cuPointerGetAttributes, "cuPointerGetAttributes");
  in.find(d.cuMemGetAddressRange, "cuMemGetAddressRange_v2");
  in.find(d.cuIpcGetMemHandle, "cuIpcGetMemHandle");
  in.find(d.cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2");
  in.find(d.cuIpcCloseMemHandle, "cuIpcCloseMemHandle");
  in.find(d.cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer");
  in.find(d.cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess");
  in.find(d.cuMemCreate, "cuMemCreate");
  in.find(d.cuMemRelease, "cuMemRelease");
  in.find(d.cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle");
  in.find(d.cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle");
  in.find(d.cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity");
  in.find(d.cuMemExportToShareableHandle, "cuMemExportToShareableHandle");
  in.find(d.cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle");
  in.find(d.cuMemAddressReserve, "cuMemAddressReserve");
  in.find(d.cuMemAddressFree, "cuMemAddressFree");
  in.find(d.cuMemMap, "cuMemMap");
  in.find(d.cuMemUnmap, "cuMemUnmap");
  in.find(d.cuMemSetAccess, "cuMemSetAccess");
}

Result<Driver> load() {
  // Never closed: the driver has threads of its own.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(Code::unsupported, fmt::format("no NVIDIA driver: {}", dlerror()));
  Driver driver;
  Finder finder(library);
  find_devices(finder, driver);
  find_memory(finder, driver);
  find_work(finder, driver);
  Finder optional(library);
  find_sharing(optional, driver);
  if (finder.missing() != nullptr)
    return fail(Code::unsupported, fmt::format("the NVIDIA driver is too old: {} lacks {}",
                                               kLibrary, finder.missing()));
  const int started = driver.cuInit(0);
  if (started != kNoDevice) RESHARD_TRY(check(driver, started, "cuInit"));
  int count = 0;
  if (started == kSuccess)
    RESHARD_TRY(check(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0) return fail(Code::unsupported, "no GPU: the NVIDIA driver finds none");
  return driver;
}

Code code_of(int status) {
  switch (status) {
    case kInvalidValue: return Code::invalid_argument;
    case kNoDevice: return Code::unsupported;
    default: return Code::io;
  }
}

}  // namespace

Result<const Driver*> load_driver() {
  static const Result<Driver> driver = load();
  if (!driver) return tl::unexpected(driver.error());
  return &*driver;
}

Result<> check(const Driver& driver, int status, std::string_view what) {
  if (status == kSuccess) return {};
  const char *name = nullptr, *text = nullptr;
  if (driver.cuGetErrorName(status, &name) != kSuccess) name = nullptr;
  if (driver.cuGetErrorString(status, &text) != kSuccess) text = nullptr;
  return fail(code_of(status), fmt::format("{}: {} ({}): {}", what, name ? name : "unknown error",
                                           status, text ? text : "no description"));
}

}  // namespace reshard::cuda
