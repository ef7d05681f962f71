// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// An owning, zero-initialised buffer in host memory.
///
/// Buffers of 2 MiB or more are 2 MiB aligned and request huge pages, which are allocated when
/// first touched unless prefaulted. Smaller ones are 64-byte aligned and come from the heap, so
/// that a model with very many small tensors stays below the system's limit on mappings. An empty
/// buffer has size 0 and owns nothing. Not synchronised.
class HostBuffer {
 public:
  struct Options {
    /// The number of threads that touch all pages in allocate(); 0 leaves that to the first writer.
    /// The first touch of a page takes several times as long as copying its bytes.
    int prefault_threads = 0;
    /// Allocates memory that other processes of this host can map, to read or write it in place
    /// (see shared_arena.h). Alignment is as above; small buffers share pages.
    bool shared = false;
  };

  /// Allocates `bytes` zero bytes. Errors: `invalid_argument` for a size or thread count out of
  /// range; `io` if the system has no memory.
  static Result<HostBuffer> allocate(Index bytes, Options options);
  static Result<HostBuffer> allocate(Index bytes) { return allocate(bytes, Options{}); }

  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        shared_(other.shared_) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~HostBuffer();

  /// The first byte; null if empty.
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  /// Bytes.
  Index size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::span<std::byte> bytes() { return {data_, static_cast<std::size_t>(size_)}; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }

 private:
  HostBuffer(std::byte* data, Index size, bool shared)
      : data_(data), size_(size), shared_(shared) {}

  std::byte* data_ = nullptr;
  Index size_ = 0;
  bool shared_ = false;
};

/// The alignment of large buffers, and the size from which a buffer is large: one huge page. Bytes.
inline constexpr Index kHugePage = Index{2} << 20;

}  // namespace reshard
