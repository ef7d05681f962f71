// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "reshard/exec/rank_path.h"

namespace reshard::host {

/// One rank's path, and why some bytes go by messages although that was not asked for ("" if none
/// do, or it was).
struct ProgramPathOutcome {
  std::unique_ptr<RankPath> path;
  std::string reason;
};

/// Collective. Agrees on the way between each two ranks, compiles this rank's program and binds it
/// to its memory. `reaches`: some rank's transport reaches peers' memory. `path` is null if the
/// direct path was asked for and some pair cannot take it: identical on all ranks. Errors, after
/// which the caller ends the group: memory missing (named); those of compile_rank(); the
/// transport's.
Result<ProgramPathOutcome> make_program_path(const RankWork& work, bool reaches);

}  // namespace reshard::host
