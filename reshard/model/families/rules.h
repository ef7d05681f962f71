// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/sharding/cut.h"

namespace reshard {

/// One entry of a rules file: the layout of the canonical tensors whose names match a pattern.
struct Rule {
  struct Cut {
    int dim = 0;                    ///< negative counts from the last.
    std::vector<std::string> axes;  ///< applied in this order.
    CutRule rule = CutRule::balanced;
    DimCut::Combine combine = DimCut::Combine::sequential;
    Index granule = 1;
  };
  /// Restricts the tensor to some ranks: those whose coordinate on `axis` is `at`, or, without
  /// `at`, floor(v / per) for the number v that wildcard `number` (from 1) of the pattern matched.
  struct Where {
    std::string axis;
    std::optional<Index> at;
    int number = 0;
    Index per = 1;
  };
  std::string match;  ///< '*' matches any run of characters, '#' a run of digits; the whole name
                      ///< must match.
  std::string name;   ///< local name; empty: the canonical one. "$1" is what the first '*' or '#'
                      ///< matched, ...
  std::optional<DType> dtype;  ///< of the local tensor, if it is a convertible one; else as it is.
  std::vector<Cut> cuts;
  std::vector<Where> where;
};

/// A rules file: mesh axes, fastest first, and rules. The first rule that matches a tensor applies.
struct RuleSet {
  std::vector<Axis> axes;
  std::vector<Rule> rules;
};

}  // namespace reshard
