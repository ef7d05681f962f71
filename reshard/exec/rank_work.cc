// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/rank_work.h"

namespace reshard {

const ModelLayout& RankWork::source_layout() const {
  if (hooks.conversions == nullptr || hooks.conversions->before.layout == nullptr)
    return planner.source();
  const SideConversion& before = hooks.conversions->before;
  return before.quantises ? *before.layout->values : *before.layout->stored;
}

const ModelLayout& RankWork::target_layout() const {
  if (hooks.conversions == nullptr || hooks.conversions->after.layout == nullptr)
    return planner.target();
  const SideConversion& after = hooks.conversions->after;
  return after.quantises ? *after.layout->stored : *after.layout->values;
}

}  // namespace reshard
