// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/device.h"

#include <fmt/format.h>

#include "reshard/cuda/driver.h"
#include "reshard/cuda/kernel_image.h"

namespace reshard::cuda {
namespace {

/// True for the errors of a driver that is older than the image, and of an image without code for
/// the GPU.
bool is_refused_image(int status) {
  return status == kInvalidImage || status == kNoBinaryForGpu || status == kInvalidPtx ||
         status == kUnsupportedPtxVersion;
}

}  // namespace

Device::Device(const Driver& driver, int ordinal, const KernelImages& images)
    : driver_(driver), images_(std::make_unique<const KernelImages>(images)), ordinal_(ordinal) {}

Result<std::shared_ptr<const Device>> Device::open(int ordinal) {
  return open(*RESHARD_TRY(load_driver()), ordinal);
}

Result<std::shared_ptr<const Device>> Device::open(const Driver& driver, int ordinal) {
  return open(driver, ordinal, RESHARD_TRY(chosen_kernel_images()));
}

Result<std::shared_ptr<const Device>> Device::open(const Driver& driver, int ordinal,
                                                   const KernelImages& images) {
  int count = 0;
  RESHARD_TRY(check(driver, driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (ordinal < 0 || ordinal >= count)
    return fail(Code::not_found,
                fmt::format("GPU {}: CUDA sees {}, counted from 0", ordinal, count));
  std::shared_ptr<Device> device(new Device(driver, ordinal, images));
  RESHARD_TRY(device->describe());
  Context context = nullptr;
  RESHARD_TRY(check(driver, driver.cuDevicePrimaryCtxRetain(&context, device->device_),
                    fmt::format("cuDevicePrimaryCtxRetain of GPU {}", ordinal)));
  device->context_ = context;
  return device;
}

Result<> Device::call_with_context(std::string_view what, int (*run)(void*), void* f) const {
  RESHARD_TRY(check(driver_, driver_.cuCtxPushCurrent(context_), "cuCtxPushCurrent"));
  const int status = run(f);
  Context popped = nullptr;
  driver_.cuCtxPopCurrent(&popped);
  return check(driver_, status, what);
}

Result<> Device::describe() {
  char name[256] = {};
  int major = 0, minor = 0, host_addresses = 0;
  const auto attribute = [&](int& value, Attribute which) {
    return check(driver_, driver_.cuDeviceGetAttribute(&value, which, device_),
                 "cuDeviceGetAttribute");
  };
  RESHARD_TRY(check(driver_, driver_.cuDeviceGet(&device_, ordinal_), "cuDeviceGet"));
  RESHARD_TRY(
      check(driver_, driver_.cuDeviceGetName(name, sizeof name - 1, device_), "cuDeviceGetName"));
  RESHARD_TRY(attribute(multiprocessors_, kMultiprocessors));
  RESHARD_TRY(attribute(major, kCapabilityMajor));
  RESHARD_TRY(attribute(minor, kCapabilityMinor));
  RESHARD_TRY(attribute(shared_bytes_per_block_, kSharedBytesPerBlock));
  RESHARD_TRY(attribute(host_addresses, kHostPointersOfRegistered));
  uses_host_addresses_ = host_addresses != 0;
  name_ = name;
  capability_ = major * 10 + minor;
  return {};
}

Result<Module> Device::load_images() const {
  if (images_->main.empty() && images_->portable.empty())
    return fail(Code::unsupported,
                "this build of reshard has no code for GPUs: nvcc was not found; "
                "RESHARD_CUDA_IMAGE may name a file with that code");
  std::string refusals;
  for (const auto image : {images_->main, images_->portable}) {
    if (image.empty()) continue;
    Module module = nullptr;
    int status = kSuccess;
    const auto loaded = call("cuModuleLoadData", [&] {
      return status = driver_.cuModuleLoadData(&module, image.data());
    });
    if (loaded) return module;
    if (!is_refused_image(status)) return tl::unexpected(loaded.error());
    refusals += (refusals.empty() ? "" : "; ") + loaded.error().message;
  }
  int version = 0;
  RESHARD_TRY(check(driver_, driver_.cuDriverGetVersion(&version), "cuDriverGetVersion"));
  return fail(
      Code::unsupported,
      fmt::format(
          "the driver (of CUDA {}.{}) takes no code of this build for {} (compute capability "
          "{}.{}): {}; a driver from 525 on and a GPU of compute capability 8.0 or higher are "
          "needed",
          version / 1000, version % 1000 / 10, name_, capability_ / 10, capability_ % 10,
          refusals));
}

Result<Function> Device::kernel(const char* name) const {
  const std::lock_guard lock(mutex_);
  if (module_ == nullptr) module_ = RESHARD_TRY(load_images());
  Function function = nullptr;
  RESHARD_TRY(call(fmt::format("cuModuleGetFunction of {}", name),
                   [&] { return driver_.cuModuleGetFunction(&function, module_, name); }));
  return function;
}

Result<> Device::enable_peer_access(int ordinal) const {
  const auto peer = RESHARD_TRY(open(driver_, ordinal, {}));
  int can = 0;
  if (driver_.cuDeviceCanAccessPeer != nullptr && driver_.cuCtxEnablePeerAccess != nullptr)
    RESHARD_TRY(check(driver_, driver_.cuDeviceCanAccessPeer(&can, device_, peer->device_),
                      "cuDeviceCanAccessPeer"));
  if (can == 0)
    return fail(Code::unsupported, fmt::format("GPU {} ({}) cannot access the memory of GPU {}",
                                               ordinal_, name_, ordinal));
  return call(fmt::format("cuCtxEnablePeerAccess to GPU {}", ordinal), [&] {
    const int status = driver_.cuCtxEnablePeerAccess(peer->context_, 0);
    return status == kPeerAccessEnabled ? kSuccess : status;
  });
}

Device::~Device() {
  if (module_ != nullptr)
    (void)call("cuModuleUnload", [&] { return driver_.cuModuleUnload(module_); });
  if (context_ != nullptr) driver_.cuDevicePrimaryCtxRelease(device_);
}

}  // namespace reshard::cuda
