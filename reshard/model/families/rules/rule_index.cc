// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/rules/rule_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "reshard/model/families/local_names.h"

namespace reshard::families {
namespace {

/// The whole text as a number; none if it is not one.
std::optional<Index> number_of(std::string_view text) {
  Index number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

void RuleIndex::split(std::string_view text) {
  skeleton_.clear();
  runs_.clear();
  std::size_t begin = 0;
  bool in_number = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const bool digit = i < text.size() && ((text[i] >= '0' && text[i] <= '9') || text[i] == '#');
    if (in_number && !digit) runs_.push_back(text.substr(begin, i - begin));
    if (digit && !in_number) begin = i;
    if (i < text.size() && (!digit || !in_number)) skeleton_ += digit ? '#' : text[i];
    in_number = digit;
  }
}

RuleIndex::RuleIndex(const std::vector<AppliedRule>& rules, const ModelSpec& model,
                     const ClassNames& names, const Expression::Lookup& numbers)
    : rules_(rules), model_(model), names_(names), numbers_(numbers) {
  for (std::size_t i = 0; i < rules.size(); ++i)
    for (std::size_t k = 0; k < rules[i].rule->num_parts(); ++k) {
      if (!rules[i].parts[k]) continue;
      const std::string& pattern = rules[i].rule->part(k).match;
      if (pattern.find('*') != pattern.npos) {
        any_.push_back({i, k});
        continue;
      }
      split(pattern);
      const bool plain = std::ranges::all_of(
          runs_, [](auto run) { return run == "#" || run.find('#') == run.npos; });
      by_skeleton_[skeleton_].push_back({i, k, runs_, plain});
    }
}

Result<std::vector<RuleMatch>> RuleIndex::find(std::string_view name,
                                               const CanonicalTensor& tensor) {
  split(name);
  candidates_.clear();
  for (const Place& place : any_) candidates_.push_back(&place);
  if (const auto same = by_skeleton_.find(skeleton_); same != by_skeleton_.end())
    for (const Place& place : same->second) candidates_.push_back(&place);
  if (!any_.empty())
    std::ranges::sort(candidates_, {}, [](const Place* p) { return std::tuple(p->rule, p->part); });
  std::vector<RuleMatch> found;
  bool owned = false;
  for (const Place* place : candidates_) {
    const bool shared = rules_[place->rule].rule->part(place->part).shared;
    if (owned && !shared) continue;
    auto matched = RESHARD_TRY(match(*place, name, tensor));
    if (!matched) continue;
    owned |= !shared;
    found.push_back(*std::move(matched));
  }
  return found;
}

Result<std::optional<std::vector<std::string>>> RuleIndex::groups(const Place& place,
                                                                  std::string_view name) {
  if (!place.by_runs) return matcher_.match(rules_[place.rule].rule->part(place.part).match, name);
  std::optional<std::vector<std::string>> found(std::in_place);
  for (std::size_t i = 0; i < runs_.size(); ++i)
    if (place.runs[i] == "#" && runs_[i].find('#') == runs_[i].npos)
      found->emplace_back(runs_[i]);
    else if (place.runs[i] != runs_[i])
      return std::optional<std::vector<std::string>>();
  return found;
}

Result<std::optional<RuleMatch>> RuleIndex::match(const Place& place, std::string_view name,
                                                  const CanonicalTensor& tensor) {
  const AppliedRule& applied = rules_[place.rule];
  const RulePart& part = applied.rule->part(place.part);
  auto matched = RESHARD_TRY(groups(place, name));
  if (!matched || !RESHARD_TRY(has_shape(part, tensor))) return std::optional<RuleMatch>();
  RuleMatch out{place.rule, place.part, *std::move(matched)};
  if (part.each > 0) {
    const auto at = out.groups.begin() + (part.each - 1);
    const auto number = number_of(*at);
    if (!number)
      return fail(Code::invalid_argument,
                  fmt::format("'{}': wildcard {} of {} matches '{}', which is no number", name,
                              part.each, part.match, *at));
    out.each = *number;
    out.groups.erase(at);
  }
  if (!RESHARD_TRY(applies(applied, out.groups))) return std::optional<RuleMatch>();
  return std::optional(std::move(out));
}

Result<bool> RuleIndex::has_shape(const RulePart& part, const CanonicalTensor& tensor) const {
  if (part.shape.empty()) return true;
  const Dims shape = tensor.stored_shape();
  bool same = shape.size() == static_cast<int>(part.shape.size());
  for (int i = 0; same && i < shape.size(); ++i)
    same = RESHARD_TRY(part.shape[static_cast<std::size_t>(i)].value(numbers_)) == shape[i];
  return same;
}

Result<bool> RuleIndex::applies(const AppliedRule& applied,
                                const std::vector<std::string>& groups) const {
  if (applied.rule->from || applied.below) {
    const auto number = groups.empty() ? std::nullopt : number_of(groups[0]);
    if (!number || *number < applied.from || *number >= applied.below.value_or(*number + 1))
      return false;
  }
  const std::string& pattern = applied.rule->beside;
  if (pattern.empty()) return true;
  const auto beside = RESHARD_TRY(substituted(pattern, groups));
  return model_.find(names_.in_checkpoint(beside)).has_value();
}

}  // namespace reshard::families
