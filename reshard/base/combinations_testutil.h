// SPDX-License-Identifier: Apache-2.0
// A share of the combinations of two lists, for suites whose whole product takes too long.
#pragma once

#include <cstdlib>
#include <string_view>
#include <tuple>
#include <vector>

namespace reshard {

/// Combines the elements i and j of two lists where `first` + i + j is a multiple of `share`; with
/// RESHARD_SLOW_TESTS in the environment, all of them. Each element is in at least one combination
/// if the other list has `share` elements, and `share` consecutive values of `first` take all.
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

/// A value of `first` for a name: suites with different names take different combinations.
constexpr std::size_t first_of(std::string_view name) {
  std::size_t sum = 0;
  for (const char c : name) sum += static_cast<unsigned char>(c);
  return sum;
}

}  // namespace reshard
