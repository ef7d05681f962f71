// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/memory.h"

#include <fmt/format.h>

#include "reshard/cuda/pointer.h"

namespace reshard::cuda {
namespace {

DevicePtr to_device_ptr(const void* at) { return reinterpret_cast<DevicePtr>(at); }

Result<> check_size(Index bytes) {
  if (bytes >= 0) return {};
  return fail(Code::invalid_argument, fmt::format("a buffer of {} bytes", bytes));
}

/// " (N bytes are free on GPU 0, NVIDIA H200)", if the driver says.
std::string free_bytes(const Device& device) {
  std::size_t free = 0, total = 0;
  const auto known =
      device.call("cuMemGetInfo", [&] { return device.driver().cuMemGetInfo(&free, &total); });
  if (!known) return "";
  return fmt::format(" ({} of {} bytes are free on GPU {}, {})", free, total, device.ordinal(),
                     device.name());
}

}  // namespace

Result<Buffer> Buffer::on_device(std::shared_ptr<const Device> device, Index bytes) {
  RESHARD_TRY(check_size(bytes));
  Buffer out;
  if (bytes == 0) return out;
  DevicePtr at = 0;
  auto done = device->call(fmt::format("cuMemAlloc of {} bytes", bytes), [&] {
    return device->driver().cuMemAlloc(&at, static_cast<std::size_t>(bytes));
  });
  if (!done) {
    done.error().message += free_bytes(*device);
    return tl::unexpected(std::move(done).error());
  }
  out.data_ = reinterpret_cast<std::byte*>(at);
  out.size_ = bytes;
  out.device_ = std::move(device);
  return out;
}

Result<Buffer> Buffer::pinned(std::shared_ptr<const Device> device, Index bytes) {
  RESHARD_TRY(check_size(bytes));
  Buffer out;
  if (bytes == 0) return out;
  void* at = nullptr;
  RESHARD_TRY(device->call(fmt::format("cuMemHostAlloc of {} bytes", bytes), [&] {
    return device->driver().cuMemHostAlloc(&at, static_cast<std::size_t>(bytes),
                                           kPortableHostMemory);
  }));
  out.data_ = static_cast<std::byte*>(at);
  out.size_ = bytes;
  out.pinned_ = true;
  out.device_ = std::move(device);
  return out;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  // Fails only if the process is ending and CUDA has gone before it.
  (void)device_->call(pinned_ ? "cuMemFreeHost" : "cuMemFree", [&] {
    return pinned_ ? device_->driver().cuMemFreeHost(data_)
                   : device_->driver().cuMemFree(to_device_ptr(data_));
  });
}

Result<bool> ask_of_pointer(const Device& device, PointerAttribute what, const void* at,
                            void* answer) {
  bool known = true;
  RESHARD_TRY(device.call("cuPointerGetAttribute", [&] {
    const int status = device.driver().cuPointerGetAttribute(answer, what, to_device_ptr(at));
    known = status != kInvalidValue && status != kNotSupported;
    return known ? status : kSuccess;
  }));
  return known;
}

Result<MemoryKind> memory_kind(const Device& device, const void* at) {
  unsigned type = kHostMemory;
  const bool known = RESHARD_TRY(ask_of_pointer(device, kMemoryType, at, &type));
  if (!known || type == kHostMemory) return MemoryKind{};
  MemoryKind kind{true, -1};
  RESHARD_TRY(ask_of_pointer(device, kDeviceOrdinal, at, &kind.ordinal));
  return kind;
}

}  // namespace reshard::cuda
