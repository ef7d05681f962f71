// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/result.h"

namespace reshard::cli {

/// The processes of a program that starts them itself.
struct Spawning {
  int first = 0, count = 1;  ///< ranks.
  std::string rendezvous;    ///< where the user has them meet; empty: by a socket without a name.
  std::string job;           ///< its name there.
  double deadline_seconds = 60;
};

/// Starts the processes with the arguments of this one, and waits for them.
///
/// 0 when all of them ended well. Otherwise the error says what happened first: a process that a
/// signal killed, one that did not run at all for the deadline (five seconds at least) and was
/// killed for that, or the reason that a process gave. Once one has failed, the others have ten
/// seconds to end by themselves. An interrupt is passed on; a second one kills. None outlives this,
/// and nothing that they made to meet.
Result<int> spawn_ranks(const Spawning& spawning);

}  // namespace reshard::cli
