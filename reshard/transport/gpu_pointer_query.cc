// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/gpu_pointer_query.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace reshard {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
/// CUresult, CUpointer_attribute and CUmemorytype.
constexpr int kSuccess = 0, kNoDevice = 100, kInvalidDevice = 101;
constexpr int kMemoryType = 2, kIsManaged = 8;
constexpr unsigned kDeviceMemory = 2;

Result<> check(int status, std::string_view what) {
  if (status == kSuccess) return {};
  return fail(Code::io, fmt::format("{} failed with CUDA error {}", what, status));
}

/// Starts the driver. Errors: `unsupported` without a GPU.
Result<> start(const GpuDriver& driver) {
  const int started = driver.cuInit(0);
  if (started != kNoDevice) RESHARD_TRY(check(started, "cuInit"));
  int count = 0;
  if (started == kSuccess) RESHARD_TRY(check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0) return fail(Code::unsupported, "no GPU: the NVIDIA driver finds none");
  return {};
}

Result<GpuDriver> load() {
  // Never closed: the driver has threads of its own.
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(Code::unsupported, fmt::format("no NVIDIA driver: {}", dlerror()));
  GpuDriver driver;
  const char* missing = nullptr;
  const auto find = [&]<class F>(F*& function, const char* symbol) {
    function = reinterpret_cast<F*>(dlsym(library, symbol));
    if (function == nullptr && missing == nullptr) missing = symbol;
  };
  find(driver.cuInit, "cuInit");
  find(driver.cuDeviceGetCount, "cuDeviceGetCount");
  find(driver.cuDeviceGet, "cuDeviceGet");
  find(driver.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(driver.cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  find(driver.cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  find(driver.cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  find(driver.cuPointerGetAttribute, "cuPointerGetAttribute");
  if (missing != nullptr)
    return fail(Code::unsupported,
                fmt::format("the NVIDIA driver is too old: {} lacks {}", kLibrary, missing));
  return driver;
}

Result<const GpuDriver*> load_once() {
  static const Result<GpuDriver> driver = load();
  if (!driver) return tl::unexpected(driver.error());
  return &*driver;
}

}  // namespace

Result<std::unique_ptr<GpuPointerQuery>> GpuPointerQuery::open(const GpuDriver& driver,
                                                               int ordinal) {
  RESHARD_TRY(start(driver));
  std::unique_ptr<GpuPointerQuery> gpu(new GpuPointerQuery(driver));
  const int found = driver.cuDeviceGet(&gpu->device_, ordinal);
  if (found == kInvalidDevice)
    return fail(Code::not_found, fmt::format("GPU {}: this process sees no such GPU", ordinal));
  RESHARD_TRY(check(found, "cuDeviceGet"));
  RESHARD_TRY(check(driver.cuDevicePrimaryCtxRetain(&gpu->context_, gpu->device_),
                    "cuDevicePrimaryCtxRetain"));
  return gpu;
}

Result<std::unique_ptr<GpuPointerQuery>> GpuPointerQuery::open(int ordinal) {
  const GpuDriver* driver = RESHARD_TRY(load_once());
  return open(*driver, ordinal);
}

Result<std::unique_ptr<GpuPointerQuery>> GpuPointerQuery::open_if_any(int ordinal) {
  if (ordinal < 0) return nullptr;
  auto gpu = open(ordinal);
  if (!gpu && gpu.error().code == Code::unsupported) return nullptr;
  return gpu;
}

std::string GpuPointerQuery::unavailable_reason() {
  const auto driver = load_once();
  const Result<> started = driver ? start(**driver) : tl::unexpected(driver.error());
  return started ? "" : started.error().message;
}

GpuPointerQuery::~GpuPointerQuery() {
  if (context_ != nullptr) (void)driver_.cuDevicePrimaryCtxRelease(device_);
}

/// False if the driver does not know the address.
bool GpuPointerQuery::attribute(int which, const void* at, unsigned& value) const {
  return driver_.cuPointerGetAttribute(&value, which, reinterpret_cast<std::uintptr_t>(at)) ==
         kSuccess;
}

bool GpuPointerQuery::contains(const void* at) const {
  unsigned type = 0;
  return attribute(kMemoryType, at, type) && type == kDeviceMemory;
}

bool GpuPointerQuery::is_managed(const void* at) const {
  unsigned managed = 0;
  return attribute(kIsManaged, at, managed) && (managed & 0xff) != 0 && contains(at);
}

GpuPointerQuery::Current::Current(const GpuPointerQuery* gpu)
    : driver_(gpu != nullptr ? &gpu->driver_ : nullptr) {
  if (driver_ != nullptr && driver_->cuCtxPushCurrent(gpu->context_) != kSuccess) driver_ = nullptr;
}

GpuPointerQuery::Current::~Current() {
  void* popped = nullptr;
  if (driver_ != nullptr) (void)driver_->cuCtxPopCurrent(&popped);
}

}  // namespace reshard
