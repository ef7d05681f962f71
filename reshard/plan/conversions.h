// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/plan/planner.h"

namespace reshard {

/// Tensors that one plan converts in one way.
struct ConversionUse {
  Conversion conversion;
  Index tensors = 0, elements = 0;  ///< each canonical element once.
  bool loses_precision = false;
  std::string example;  ///< the first of the tensors.
};

/// What a plan does to values, in the order of the model's tensors; empty where all bits stay.
std::vector<ConversionUse> conversions_of(const Planner& planner);

/// The tensors that the source holds and the target does not: it leaves them out on purpose
/// (ModelLayout::omits), or the plan was told to ignore them.
std::vector<std::string> omitted_by(const Planner& planner);

/// "converts 310 tensors from F32 to BF16 (loses precision), such as 'model.norm.weight'"
std::string to_string(const ConversionUse& use);

}  // namespace reshard
