// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/name_pattern.h"
#include "reshard/model/tensor.h"

namespace reshard::families {

/// A part of a rule that a tensor's name matches, and what its wildcards matched.
struct RuleMatch {
  const Rule* rule = nullptr;
  std::size_t number = 0;           ///< of the rule.
  std::size_t part = 0;             ///< of the rule's.
  std::vector<std::string> groups;  ///< without that of `each`.
  Index each = 0;                   ///< what the wildcard `each` matched.
};

/// Finds the parts of rules that names match. Names that differ in digits only share an entry, so
/// that a file of many rules is not tried rule by rule.
class RuleIndex {
 public:
  /// Borrows the rules (those that apply) and the model, whose tensors `beside` names.
  RuleIndex(const std::vector<const Rule*>& rules, const ModelSpec& model);

  /// The part that owns the tensor, if any, and all `shared` parts that match its name. Errors: the
  /// budget of pattern matching is exhausted; a wildcard `each` that is no number; `beside` with a
  /// number that the pattern lacks.
  Result<std::vector<RuleMatch>> find(std::string_view name);

 private:
  struct Place {
    std::size_t rule, part;
  };
  Result<std::optional<RuleMatch>> match(Place place, std::string_view name);
  /// The match, unless its rule asks for a tensor that the model lacks.
  Result<std::optional<RuleMatch>> beside(RuleMatch match) const;

  const std::vector<const Rule*>& rules_;
  const ModelSpec& model_;
  std::unordered_map<std::string, std::vector<Place>> by_skeleton_;
  std::vector<Place> any_;  ///< patterns with '*'.
  PatternMatcher matcher_;
};

}  // namespace reshard::families
