// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace reshard {

/// "rank 3", "ranks 1, 3", and of more than 16 "ranks 0, 1, ... and 984 more", of those below
/// `size` for which `in(index)` is true; "no rank" when there are none.
template <class Predicate>
std::string list_ranks(std::size_t size, Predicate in) {
  constexpr std::size_t kNamed = 16;
  std::string list;
  std::size_t n = 0;
  for (std::size_t r = 0; r < size; ++r) {
    if (!in(r)) continue;
    if (n < kNamed) list += (n == 0 ? "" : ", ") + std::to_string(r);
    ++n;
  }
  if (n == 0) return "no rank";
  if (n > kNamed) list += " and " + std::to_string(n - kNamed) + " more";
  return (n == 1 ? "rank " : "ranks ") + list;
}

}  // namespace reshard
