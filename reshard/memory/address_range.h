// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// Addresses of this process that nothing else has, without memory behind them: names for bytes
/// that are never there all at once. Reading or writing them ends the process.
///
/// One owner; given back by the destructor. Costs no memory, whatever the size.
class AddressRange {
 public:
  /// Page-aligned; `bytes` may be 0, then it is empty. Errors: invalid_argument for a negative or
  /// absurd size, io when the system has no room for it.
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

  /// Null when empty.
  std::byte* begin() const { return begin_; }
  /// Bytes.
  Index size() const { return size_; }

 private:
  AddressRange(std::byte* begin, Index size) : begin_(begin), size_(size) {}

  std::byte* begin_ = nullptr;
  Index size_ = 0;
};

}  // namespace reshard
