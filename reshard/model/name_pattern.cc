// SPDX-License-Identifier: Apache-2.0
// A pattern is a list of segments separated by '*'. The begin of a segment determines its end,
// because '#' takes all digits; a later begin gives a later end. So the first position where a
// segment fits leaves the most for the following segments, and matching needs no backtracking. Only
// the last segment must end with the name; it takes the first position where it does.
#include "reshard/model/name_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace reshard {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Removes the segment before the first '*' from the pattern; true if there was a '*'.
bool next_segment(std::string_view& pattern, std::string_view& segment) {
  const auto star = pattern.find('*');
  segment = pattern.substr(0, star);
  pattern.remove_prefix(star == pattern.npos ? pattern.size() : star + 1);
  return star != segment.npos;
}

/// Adds the matches of the '#' of a segment that fits at `begin`.
void add_numbers(std::string_view segment, std::string_view name, std::size_t begin,
                 std::vector<std::string>& groups) {
  for (const char c : segment) {
    const std::size_t from = begin++;
    if (c != '#') continue;
    while (begin < name.size() && is_digit(name[begin])) ++begin;
    groups.emplace_back(name.substr(from, begin - from));
  }
}

}  // namespace

Result<> check_tensor_name(std::string_view name) {
  constexpr int kShown = 64;
  if (name.size() <= kMaxTensorName) return {};
  return fail(Code::invalid_argument,
              fmt::format("tensor name '{:.{}}...' has {} bytes, at most {} are allowed", name,
                          kShown, name.size(), kMaxTensorName));
}

/// True if the segment fits at `at`, which then becomes its end.
bool PatternMatcher::fit(std::string_view segment, std::string_view name, std::size_t& at) {
  std::size_t to = at;
  bool fits = true;
  for (std::size_t i = 0; i < segment.size() && fits; ++i) {
    fits = to < name.size() && (segment[i] == '#' ? is_digit(name[to]) : name[to] == segment[i]);
    to = fits && segment[i] == '#' ? run_end_[to] : to + 1;
    left_ -= left_ == 0 ? 0 : 1;
  }
  if (fits) at = to;
  return fits;
}

/// Moves `at` to the first position, from `at` on, where the segment fits (and, with `to_end`, ends
/// with the name); false if there is none.
bool PatternMatcher::fit_first(std::string_view segment, std::string_view name, std::size_t& at,
                               bool to_end) {
  const bool fixed = segment.find('#') == segment.npos;
  if (to_end && fixed) {
    if (segment.size() > name.size() - at) return false;
    at = name.size() - segment.size();
  }
  for (; at <= name.size() && left_ > 0; ++at) {
    --left_;
    std::size_t end = at;
    if (fit(segment, name, end) && (!to_end || end == name.size())) return true;
    if (to_end && fixed) return false;
  }
  return false;
}

Result<std::optional<std::vector<std::string>>> PatternMatcher::match(std::string_view pattern,
                                                                      std::string_view name) {
  using Groups = std::vector<std::string>;
  std::string_view segment;
  std::size_t end = 0;
  if (pattern.find('#') != pattern.npos) {
    run_end_.resize(name.size());
    for (std::size_t i = name.size(); i-- > 0;)
      run_end_[i] = i + 1 < name.size() && is_digit(name[i + 1]) ? run_end_[i + 1] : i + 1;
    left_ -= std::min<std::uint64_t>(left_, name.size());
  }
  bool more = next_segment(pattern, segment);
  bool fits = fit(segment, name, end) && (more || end == name.size());
  Groups groups;
  if (fits) add_numbers(segment, name, 0, groups);
  while (fits && more) {
    more = next_segment(pattern, segment);
    std::size_t begin = end;
    fits = fit_first(segment, name, begin, !more);
    if (!fits) break;
    groups.emplace_back(name.substr(end, begin - end));
    add_numbers(segment, name, begin, groups);
    end = begin;
    fit(segment, name, end);
  }
  if (left_ == 0)
    return fail(Code::unsupported,
                "matching patterns with names takes too long; use fewer patterns, or patterns that "
                "begin with a literal prefix");
  return fits ? std::optional<Groups>(std::move(groups)) : std::nullopt;
}

std::optional<std::vector<std::string>> match_pattern(std::string_view pattern,
                                                      std::string_view name) {
  return *PatternMatcher(std::numeric_limits<std::uint64_t>::max()).match(pattern, name);
}

}  // namespace reshard
