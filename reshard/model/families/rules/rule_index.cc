// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules/rule_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "reshard/model/families/local_names.h"

namespace reshard::families {
namespace {

/// The text with each run of digits, and each '#', as one '#'.
std::string skeleton(std::string_view text) {
  std::string out;
  bool in_number = false;
  for (const char c : text) {
    const bool digit = (c >= '0' && c <= '9') || c == '#';
    if (!digit || !in_number) out += digit ? '#' : c;
    in_number = digit;
  }
  return out;
}

}  // namespace

RuleIndex::RuleIndex(const std::vector<const Rule*>& rules, const ModelSpec& model)
    : rules_(rules), model_(model) {
  for (std::size_t i = 0; i < rules.size(); ++i)
    for (std::size_t k = 0; k < rules[i]->num_parts(); ++k) {
      const std::string& pattern = rules[i]->part(k).match;
      const bool any = pattern.find('*') != pattern.npos;
      (any ? any_ : by_skeleton_[skeleton(pattern)]).push_back({i, k});
    }
}

Result<std::vector<RuleMatch>> RuleIndex::find(std::string_view name) {
  std::vector<Place> places = any_;
  if (const auto same = by_skeleton_.find(skeleton(name)); same != by_skeleton_.end())
    places.insert(places.end(), same->second.begin(), same->second.end());
  std::ranges::sort(places, {}, [](const Place& p) { return std::tuple(p.rule, p.part); });
  std::vector<RuleMatch> found;
  bool owned = false;
  for (const Place& place : places) {
    const bool shared = rules_[place.rule]->part(place.part).shared;
    if (owned && !shared) continue;
    auto matched = RESHARD_TRY(match(place, name));
    if (!matched) continue;
    owned |= !shared;
    found.push_back(*std::move(matched));
  }
  return found;
}

Result<std::optional<RuleMatch>> RuleIndex::match(Place place, std::string_view name) {
  const RulePart& part = rules_[place.rule]->part(place.part);
  auto groups = RESHARD_TRY(matcher_.match(part.match, name));
  if (!groups) return std::optional<RuleMatch>();
  RuleMatch out{rules_[place.rule], place.rule, place.part, *std::move(groups)};
  if (part.each == 0) return beside(std::move(out));
  const auto at = out.groups.begin() + (part.each - 1);
  const auto [end, error] = std::from_chars(at->data(), at->data() + at->size(), out.each);
  if (error != std::errc() || end != at->data() + at->size())
    return fail(Code::invalid_argument,
                fmt::format("'{}': wildcard {} of {} matches '{}', which is no number", name,
                            part.each, part.match, *at));
  out.groups.erase(at);
  return beside(std::move(out));
}

Result<std::optional<RuleMatch>> RuleIndex::beside(RuleMatch match) const {
  const std::string& pattern = match.rule->beside;
  const bool there =
      pattern.empty() || model_.find(RESHARD_TRY(substituted(pattern, match.groups)));
  return there ? std::optional(std::move(match)) : std::nullopt;
}

}  // namespace reshard::families
