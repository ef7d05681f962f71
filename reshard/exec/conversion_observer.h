// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace reshard {

/// Where some rows of a matrix are: the first byte of each part; null if there is no factor.
struct RowPlaces {
  std::byte* values = nullptr;
  std::byte* data = nullptr;
  std::byte* scales = nullptr;
  std::byte* factor = nullptr;
};

/// Sees the rows that a rank receives and converts, in place of their conversion. This is how a
/// refit is verified.
class ConversionObserver {
 public:
  virtual ~ConversionObserver() = default;
  /// Called once for all rows that one thread would convert at once, by several threads at a time.
  /// `at`: their input, which belongs to the caller again on return, and the output in the target's
  /// memory. `amax`: of the matrix, if its format needs it. Must not throw.
  virtual void consume(const RowPlaces& at, float amax, int worker) = 0;
};

}  // namespace reshard
