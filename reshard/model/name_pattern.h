// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"

/// Patterns of tensor names: '*' matches any run of characters, '#' a run of digits, all of them;
/// anything else matches itself, and the whole name must match.
namespace reshard {

/// Most bytes of the name of a tensor, in a file and in a layout.
inline constexpr std::size_t kMaxTensorName = 1024;

/// Error when the name has more. It shows the name's beginning.
Result<> check_tensor_name(std::string_view name);

/// Matches patterns and names that may come from anywhere: one pair takes at most about the product
/// of their lengths of steps, each a character compared, and all together no more than is allowed.
class PatternMatcher {
 public:
  static constexpr std::uint64_t kMaxSteps = std::uint64_t{1} << 32;
  explicit PatternMatcher(std::uint64_t max_steps = kMaxSteps) : left_(max_steps) {}

  /// What each '*' and '#' matched, in order, the shortest for the first '*' that lets the rest
  /// match, then for the next; none if the name does not match. Error: no steps are left.
  Result<std::optional<std::vector<std::string>>> match(std::string_view pattern,
                                                        std::string_view name);

 private:
  bool fit(std::string_view segment, std::string_view name, std::size_t& at);
  bool fit_first(std::string_view segment, std::string_view name, std::size_t& at, bool to_end);

  std::uint64_t left_;
  std::vector<std::size_t> run_end_;  ///< of the digits from each place of the name on.
};

/// The same without an account of steps, for patterns of the program's own and its user.
std::optional<std::vector<std::string>> match_pattern(std::string_view pattern,
                                                      std::string_view name);

}  // namespace reshard
