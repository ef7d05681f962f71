// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"

/// Patterns of tensor names: '*' matches any run of characters, '#' a maximal run of digits, any
/// other character itself. A pattern must match the whole name.
namespace reshard {

/// The maximal length of a tensor name in bytes, in files and layouts.
inline constexpr std::size_t kMaxTensorName = 1024;

/// Fails if the name is longer; the error shows its beginning.
Result<> check_tensor_name(std::string_view name);

/// Matches untrusted patterns and names within a budget of steps (character comparisons). One match
/// takes at most about the product of both lengths; all matches together take at most `max_steps`.
class PatternMatcher {
 public:
  static constexpr std::uint64_t kMaxSteps = std::uint64_t{1} << 32;
  explicit PatternMatcher(std::uint64_t max_steps = kMaxSteps) : left_(max_steps) {}

  /// The text that each '*' and '#' matched, in order; none if the name does not match. Each '*'
  /// from left to right matches as little as lets the rest match. Errors: the budget is exhausted.
  Result<std::optional<std::vector<std::string>>> match(std::string_view pattern,
                                                        std::string_view name);

 private:
  bool fit(std::string_view segment, std::string_view name, std::size_t& at);
  bool fit_first(std::string_view segment, std::string_view name, std::size_t& at, bool to_end);

  std::uint64_t left_;
  std::vector<std::size_t>
      run_end_;  ///< per position of the name: the end of the run of digits there.
};

/// The same without a budget, for patterns of the program and its user.
std::optional<std::vector<std::string>> match_pattern(std::string_view pattern,
                                                      std::string_view name);

}  // namespace reshard
