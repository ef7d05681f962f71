// SPDX-License-Identifier: Apache-2.0
// Pairs of elements of two lists, for test suites that take too long with all pairs.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <tuple>
#include <vector>

namespace reshard {

/// The pairs (as[i], bs[j]) for which `first` + i + j is a multiple of `share`: one in `share`. All
/// pairs if RESHARD_SLOW_TESTS is in the environment. If both lists have at least `share` elements,
/// each element is in a pair. `share` consecutive values of `first` give all pairs together.
/// @pre share > 0
template <class A, class B>
std::vector<std::tuple<A, B>> combinations(const std::vector<A>& as, const std::vector<B>& bs,
                                           std::size_t share, std::size_t first = 0) {
  if (std::getenv("RESHARD_SLOW_TESTS") != nullptr) share = 1;
  std::vector<std::tuple<A, B>> out;
  for (std::size_t i = 0; i < as.size(); ++i)
    for (std::size_t j = 0; j < bs.size(); ++j)
      if ((first + i + j) % share == 0) out.emplace_back(as[i], bs[j]);
  return out;
}

/// A value of `first` that depends on the name of a suite.
constexpr std::size_t first_of(std::string_view name) {
  std::size_t sum = 0;
  for (const char c : name) sum += static_cast<unsigned char>(c);
  return sum;
}

}  // namespace reshard
