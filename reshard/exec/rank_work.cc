// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/rank_work.h"

namespace reshard {

const ModelLayout& RankWork::source_layout() const {
  const auto& planned = planner.shared_source();
  return hooks.conversions == nullptr ? *planned
                                      : *memory_of(hooks.conversions->before, false, planned);
}

const ModelLayout& RankWork::target_layout() const {
  const auto& planned = planner.shared_target();
  return hooks.conversions == nullptr ? *planned
                                      : *memory_of(hooks.conversions->after, true, planned);
}

}  // namespace reshard
