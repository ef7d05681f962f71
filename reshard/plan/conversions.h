// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/plan/planner.h"

namespace reshard {

/// The tensors of a plan with the same conversion.
struct ConversionUse {
  Conversion conversion;
  Index tensors = 0, elements = 0;  ///< canonical elements, each counted once.
  bool loses_precision = false;
  std::string example;  ///< the name of the first tensor.
};

/// The conversions of a plan, in the order of the model's tensors; empty if no bits change.
std::vector<ConversionUse> conversions_of(const Planner& planner);

/// The tensors that the source holds and the target does not, because the target omits them
/// (ModelLayout::omits) or PlanOptions::ignore lists them.
std::vector<std::string> omitted_by(const Planner& planner);

/// "converts 310 tensors from F32 to BF16 (loses precision), such as 'model.norm.weight'"
std::string to_string(const ConversionUse& use);

}  // namespace reshard
