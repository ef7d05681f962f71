// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace reshard {

/// The first byte of each part of some rows of a matrix; null for a part that is absent.
struct RowPlaces {
  std::byte* values = nullptr;
  std::byte* data = nullptr;
  std::byte* scales = nullptr;
  std::byte* factor = nullptr;
};

/// Sees the rows that a rank converts. This is how a refit is verified: with an observer, a program
/// writes nothing to the target, but compares what it would have written. Both functions are called
/// by several threads at a time, and must not throw.
class ConversionVerifier {
 public:
  virtual ~ConversionVerifier() = default;
  /// Called once for each unit of rows (ProgramMatrix::unit). `at`: the rows before and after their
  /// conversion; valid only during the call.
  virtual void see(std::size_t unit, const RowPlaces& at) = 0;
  /// Called if the target does not have what a unit's rows convert to.
  virtual void differs(std::size_t unit) = 0;
};

}  // namespace reshard
