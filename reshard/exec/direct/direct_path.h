// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/exec/rank_path.h"

namespace reshard {

struct DirectPathOutcome {
  std::unique_ptr<RankPath> path;  ///< null where some rank cannot; then `reason` says which.
  std::string reason;
};

/// Destinations copy from the sources' memory, once and without staging. Collective: every rank
/// shares the memory it sends from, opens what it takes from, and all take the path or none does.
/// Errors: memory missing (named); the transport's; the caller ends the group.
Result<DirectPathOutcome> make_direct_path(const RankWork& work);

}  // namespace reshard
