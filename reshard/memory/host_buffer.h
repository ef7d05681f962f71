// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// Host memory with one owner: zero bytes until written, given back by the destructor.
///
/// Buffers of 2 MiB and more are 2 MiB aligned and ask for huge pages; their pages come into being
/// when first touched, unless they were prefaulted. Smaller ones are 64-byte aligned and come from
/// the heap, so that a model of very many small tensors does not run into the system's limit on
/// mappings. An empty buffer has size 0 and owns nothing. May move between threads; not itself
/// synchronised.
class HostBuffer {
 public:
  struct Options {
    /// Threads that touch every page before allocate returns; 0 leaves that to the first writer.
    /// The first touch of a page costs several times the copy of its bytes.
    int prefault_threads = 0;
    /// Memory that other processes of this host can map (see shared_arena.h), for whoever is to
    /// read or write it in place. Any size is aligned as said above; small ones share pages.
    bool shared = false;
  };

  /// A buffer of `bytes` zero bytes. Errors: invalid_argument for a negative or absurd size or
  /// thread count, io when the system has no memory for it.
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

  /// The first byte; null when empty.
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

/// Alignment of large buffers and the size from which a buffer counts as large: one huge page.
/// Bytes.
inline constexpr Index kHugePage = Index{2} << 20;

}  // namespace reshard
