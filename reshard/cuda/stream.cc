// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/stream.h"

#include <fmt/format.h>

#include "reshard/cuda/driver.h"

namespace reshard::cuda {

Result<Stream> Stream::make(std::shared_ptr<const Device> device) {
  StreamHandle handle = nullptr;
  RESHARD_TRY(device->call("cuStreamCreate", [&] {
    return device->driver().cuStreamCreate(&handle, kNonBlockingStream);
  }));
  return Stream(std::move(device), handle, true);
}

Stream::~Stream() {
  if (owned_)
    (void)device_->call("cuStreamDestroy",
                        [&] { return device_->driver().cuStreamDestroy(handle_); });
}

Result<> Stream::copy(std::byte* to, const std::byte* from, Index bytes) const {
  if (bytes == 0) return {};
  return device_->call("cuMemcpyAsync", [&] {
    return device_->driver().cuMemcpyAsync(reinterpret_cast<DevicePtr>(to),
                                           reinterpret_cast<DevicePtr>(from),
                                           static_cast<std::size_t>(bytes), handle_);
  });
}

Result<> Stream::fill(std::byte* at, std::byte value, Index bytes) const {
  if (bytes == 0) return {};
  return device_->call("cuMemsetD8Async", [&] {
    return device_->driver().cuMemsetD8Async(reinterpret_cast<DevicePtr>(at),
                                             std::to_integer<unsigned char>(value),
                                             static_cast<std::size_t>(bytes), handle_);
  });
}

Result<> Stream::synchronize() const {
  return device_->call("cuStreamSynchronize",
                       [&] { return device_->driver().cuStreamSynchronize(handle_); });
}

Result<HostBuffer> Stream::read(const std::byte* at, Index bytes) const {
  HostBuffer out = RESHARD_TRY(HostBuffer::allocate(bytes));
  RESHARD_TRY(copy(out.data(), at, bytes));
  RESHARD_TRY(synchronize());
  return out;
}

Result<Event> Event::make(std::shared_ptr<const Device> device, Timing timing) {
  EventHandle handle = nullptr;
  RESHARD_TRY(device->call("cuEventCreate", [&] {
    return device->driver().cuEventCreate(&handle, timing == Timing::on ? 0 : kUntimedEvent);
  }));
  return Event(std::move(device), handle);
}

Event::~Event() {
  if (handle_ != nullptr)
    (void)device_->call("cuEventDestroy",
                        [&] { return device_->driver().cuEventDestroy(handle_); });
}

Result<> Event::record(const Stream& stream) const {
  return device_->call("cuEventRecord",
                       [&] { return device_->driver().cuEventRecord(handle_, stream.handle()); });
}

Result<> Event::hold(const Stream& stream) const {
  return device_->call("cuStreamWaitEvent", [&] {
    return device_->driver().cuStreamWaitEvent(stream.handle(), handle_, 0);
  });
}

Result<bool> Event::is_done() const {
  bool done = true;
  RESHARD_TRY(device_->call("cuEventQuery", [&] {
    const int status = device_->driver().cuEventQuery(handle_);
    done = status != kNotReady;
    return done ? status : kSuccess;
  }));
  return done;
}

Result<double> Event::seconds(const Event& begin, const Event& end) {
  float milliseconds = 0;
  RESHARD_TRY(begin.device_->call("cuEventElapsedTime", [&] {
    return begin.device_->driver().cuEventElapsedTime(&milliseconds, begin.handle_, end.handle_);
  }));
  return static_cast<double>(milliseconds) / 1e3;
}

}  // namespace reshard::cuda
