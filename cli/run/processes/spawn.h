// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/result.h"

namespace reshard::cli {

/// The processes of a program that starts them itself.
struct Spawning {
  int first = 0, count = 1;  ///< ranks.
  std::string rendezvous;    ///< the user's; empty: an unnamed socket.
  std::string job;           ///< its name there.
  double deadline_seconds = 60;
};

/// Starts the processes with this process's arguments and waits for them.
///
/// Returns 0 if all of them succeed. Otherwise the error says what happened first: a process was
/// killed by a signal; a process stood still for the deadline (at least five seconds) and was
/// killed; or the error of a process. Once one has failed, the others have ten seconds to end. An
/// interrupt is passed on; a second one kills. No process and no rendezvous file outlives this
/// call.
Result<int> spawn_ranks(const Spawning& spawning);

}  // namespace reshard::cli
