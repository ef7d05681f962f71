// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/exec/rank_path.h"

namespace reshard::direct {

struct DirectPathOutcome {
  std::unique_ptr<RankPath> path;  ///< null if a rank cannot take it; `reason` then says which.
  std::string reason;
};

/// Collective. The path on which destinations copy from the sources' memory, once and without
/// staging. Every rank shares the memory it sends from and opens the memory it reads. All ranks
/// take the path, or none does. Errors, after which the caller ends the group: memory missing
/// (named); the transport's.
Result<DirectPathOutcome> make_direct_path(const RankWork& work);

}  // namespace reshard::direct
