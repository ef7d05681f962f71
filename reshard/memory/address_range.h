// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// A reserved range of addresses without memory behind it: identifies bytes that are never all in
/// memory. Reading or writing the range ends the process.
///
/// Move-only; the destructor releases the range. Uses no memory, whatever the size.
class AddressRange {
 public:
  /// Reserves a page-aligned range; empty if `bytes` is 0. Errors: `invalid_argument` unless
  /// `bytes` is 0 to 2^46; `io` if the system lacks address space.
  static Result<AddressRange> reserve(Index bytes);

  AddressRange() = default;
  AddressRange(AddressRange&& other) noexcept
      : begin_(std::exchange(other.begin_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AddressRange& operator=(AddressRange&& other) noexcept {
    std::swap(begin_, other.begin_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~AddressRange();

  /// Null if empty.
  std::byte* begin() const { return begin_; }
  /// Bytes.
  Index size() const { return size_; }

 private:
  AddressRange(std::byte* begin, Index size) : begin_(begin), size_(size) {}

  std::byte* begin_ = nullptr;
  Index size_ = 0;
};

}  // namespace reshard
