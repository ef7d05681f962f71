// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "reshard/cuda/device.h"
#include "reshard/index/interval.h"
#include "reshard/memory/host_buffer.h"

namespace reshard::cuda {

/// A stream of a GPU, owned or borrowed from a caller (torch's current one). Work on it runs in
/// the order in which it was given. Move-only.
class Stream {
 public:
  /// A stream of its own, which does not wait for the legacy default stream.
  static Result<Stream> make(std::shared_ptr<const Device> device);
  /// Borrows a stream of this device; null is the legacy default stream. It must outlive this
  /// object.
  static Stream borrow(std::shared_ptr<const Device> device, StreamHandle handle) {
    return {std::move(device), handle, false};
  }
  Stream(Stream&& other) noexcept
      : device_(std::move(other.device_)),
        handle_(std::exchange(other.handle_, nullptr)),
        owned_(std::exchange(other.owned_, false)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    std::swap(owned_, other.owned_);
    return *this;
  }
  ~Stream();

  const Device& device() const { return *device_; }
  const std::shared_ptr<const Device>& shared_device() const { return device_; }
  StreamHandle handle() const { return handle_; }

  /// Gives work: copies between any memory that CUDA knows, sets bytes. The memory must stay until
  /// the work is done. Errors: the driver's, also those of earlier work.
  Result<> copy(std::byte* to, const std::byte* from, Index bytes) const;
  Result<> fill(std::byte* at, std::byte value, Index bytes) const;
  /// Blocks until all work is done. Errors: of that work.
  Result<> synchronize() const;
  /// A copy in host memory of bytes in a GPU's, as they are after the work that the stream has.
  /// Blocks. Errors: also host memory that is short.
  Result<HostBuffer> read(const std::byte* at, Index bytes) const;

 private:
  Stream(std::shared_ptr<const Device> device, StreamHandle handle, bool owned)
      : device_(std::move(device)), handle_(handle), owned_(owned) {}

  std::shared_ptr<const Device> device_;
  StreamHandle handle_ = nullptr;
  bool owned_ = false;
};

/// A point in the work of a stream.
class Event {
 public:
  enum class Timing { off, on };
  static Result<Event> make(std::shared_ptr<const Device> device, Timing timing = Timing::off);
  Event(Event&& other) noexcept
      : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Event();

  /// The point after all work that the stream has now.
  Result<> record(const Stream& stream) const;
  /// Makes later work of the stream wait for the recorded point. Host code does not wait.
  Result<> hold(const Stream& stream) const;
  /// True if the work before the recorded point is done. Errors: of that work.
  Result<bool> is_done() const;
  /// Seconds between two recorded points that are done, both with timing.
  static Result<double> seconds(const Event& begin, const Event& end);

 private:
  Event(std::shared_ptr<const Device> device, EventHandle handle)
      : device_(std::move(device)), handle_(handle) {}

  std::shared_ptr<const Device> device_;
  EventHandle handle_ = nullptr;
};

}  // namespace reshard::cuda
