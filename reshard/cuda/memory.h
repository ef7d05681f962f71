// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "reshard/cuda/device.h"
#include "reshard/index/interval.h"

namespace reshard::cuda {

/// An owning buffer in a GPU's memory, not initialised; or in host memory that GPUs read and write
/// at full speed (pinned). Move-only; not synchronised. Freeing it waits until the GPU is idle, as
/// CUDA does: keep buffers from one refit to the next.
class Buffer {
 public:
  /// Errors: `invalid_argument` for a negative size; `io` if memory is short (says how many bytes
  /// were asked for, and how many are free).
  static Result<Buffer> on_device(std::shared_ptr<const Device> device, Index bytes);
  static Result<Buffer> pinned(std::shared_ptr<const Device> device, Index bytes);

  Buffer() = default;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();

  /// The first byte, as GPUs see it; host code may use it only if the buffer is pinned. Null if the
  /// buffer is empty.
  std::byte* data() const { return data_; }
  Index size() const { return size_; }
  bool is_pinned() const { return pinned_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(pinned_, other.pinned_);
  }

  std::shared_ptr<const Device> device_;
  std::byte* data_ = nullptr;
  Index size_ = 0;
  bool pinned_ = false;
};

/// The location of memory: a GPU or the host.
struct MemoryKind {
  bool on_device = false;  ///< false: host memory, pinned or not.
  int ordinal = -1;        ///< of the GPU that has it.
  friend bool operator==(const MemoryKind&, const MemoryKind&) = default;
};
/// The location of the byte at `at`, which any GPU of the driver may have. Memory that CUDA does
/// not know is host memory. Errors: the driver's.
Result<MemoryKind> memory_kind(const Device& device, const void* at);

}  // namespace reshard::cuda
