// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/families/rules/class_names.h"
#include "reshard/model/name_pattern.h"
#include "reshard/model/tensor.h"

namespace reshard::families {

/// A rule whose `when` holds.
struct AppliedRule {
  const Rule* rule = nullptr;
  std::size_t number = 0;   ///< of its entry in the file, from 1.
  std::vector<bool> parts;  ///< those that are there.
  Index from = 0;           ///< the least number that the first wildcard may match.
  std::optional<Index> below = {};
  std::string name;  ///< with the texts of the file.
};

/// A part of a rule that a tensor's name matches, and what its wildcards matched.
struct RuleMatch {
  std::size_t rule = 0;             ///< among those that apply.
  std::size_t part = 0;             ///< of the rule's.
  std::vector<std::string> groups;  ///< without that of `each`, nor the index of `apart`.
  Index each = 0;                   ///< what the wildcard `each` matched.
};

/// Finds the parts of rules that names match. Names that differ in digits only share an entry, so
/// that a file of many rules is not tried rule by rule.
class RuleIndex {
 public:
  /// Borrows the rules, the model, whose tensors `beside` names, the names, and the numbers of the
  /// axes, keys and the config, for `shape`.
  RuleIndex(const std::vector<AppliedRule>& rules, const ModelSpec& model, const ClassNames& names,
            const Expression::Lookup& numbers);

  /// The part that owns the tensor of this name, if any, and all `shared` parts that match it.
  /// Errors: the budget of pattern matching is exhausted; a wildcard `each` that is no number;
  /// `beside` with a number that the pattern lacks; a `shape` that cannot be computed.
  Result<std::vector<RuleMatch>> find(std::string_view name, const CanonicalTensor& tensor);

 private:
  /// A part, and the runs of digits and '#' of its pattern, if these are its only wildcards.
  struct Place {
    std::size_t rule, part;
    std::vector<std::string_view> runs = {};
    bool by_runs = false;
  };
  Result<std::optional<RuleMatch>> match(const Place& place, std::string_view name,
                                         const CanonicalTensor& tensor);
  Result<bool> has_shape(const RulePart& part, const CanonicalTensor& tensor) const;
  /// Matches a pattern: the texts of its wildcards. @pre split(name)
  Result<std::optional<std::vector<std::string>>> groups(const Place& place, std::string_view name);
  /// True unless the rule asks for other numbers, or for a tensor that the model lacks.
  Result<bool> applies(const AppliedRule& rule, const std::vector<std::string>& groups) const;
  /// Sets skeleton_ and runs_.
  void split(std::string_view name);

  const std::vector<AppliedRule>& rules_;
  const ModelSpec& model_;
  const ClassNames& names_;
  const Expression::Lookup& numbers_;
  std::unordered_map<std::string, std::vector<Place>> by_skeleton_;
  std::vector<Place> any_;  ///< patterns with '*'.
  PatternMatcher matcher_;
  std::string skeleton_;                ///< of a name: each run of digits, and '#', as one '#'.
  std::vector<std::string_view> runs_;  ///< of a name: its runs of digits and '#'.
  std::vector<const Place*> candidates_;
};

}  // namespace reshard::families
