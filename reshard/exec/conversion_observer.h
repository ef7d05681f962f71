// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "reshard/transform/copy.h"

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
  /// `unit`: ProgramMatrix::unit. `at`: their input, which belongs to the caller again on return,
  /// and the output in the target's memory; or in scratch, where they are converted afterwards, if
  /// the target has only parts of them. `amax`: of the matrix, if its format needs it. Must not
  /// throw.
  virtual void consume(std::size_t unit, const RowPlaces& at, float amax, int worker) = 0;
  /// Called in place of the copies of such parts to the target, after consume() by the same worker.
  /// Must not throw.
  virtual void deliver(std::span<const CopyTask> parts, int worker) = 0;
};

}  // namespace reshard
