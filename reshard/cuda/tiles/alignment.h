// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "reshard/index/interval.h"

namespace reshard::cuda {

/// The greatest power of two, up to 16, that divides all required numbers.
struct Alignment {
  static constexpr Index kWidest = 16;

  std::uint64_t bits = kWidest;  ///< the numbers or'ed: their lowest bit is the answer.
  void require(Index n) { bits |= static_cast<std::uint64_t>(n < 0 ? -n : n); }
  void require(const std::byte* at) { bits |= reinterpret_cast<std::uintptr_t>(at); }
  int log2() const { return std::countr_zero(bits); }
  Index bytes() const { return Index{1} << log2(); }
};

}  // namespace reshard::cuda
