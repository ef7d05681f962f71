// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <memory>

#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"
#include "reshard/transport/testing/rank_processes_testutil.h"

namespace reshard {

/// Sets RESHARD_SHM while it lives.
class OnlyWays {
 public:
  explicit OnlyWays(const char* ways) { setenv("RESHARD_SHM", ways, 1); }
  ~OnlyWays() { unsetenv("RESHARD_SHM"); }
  OnlyWays(const OnlyWays&) = delete;
  OnlyWays& operator=(const OnlyWays&) = delete;
};

/// Runs shm ranks as threads, each with its own mailbox, with RESHARD_SHM=`ways`.
inline auto shm_threads(const char* ways) {
  return [ways](int n, const RankBody& body) -> Result<> {
    const OnlyWays only(ways);
    InprocGroup group = RESHARD_TRY(InprocGroup::create(n));
    return run_ranks(n, [&](Rank rank) -> Result<> {
      RankEnds ends;
      ends.control = RESHARD_TRY(group.control(rank));
      ends.transport = RESHARD_TRY(shm::make_transport(*ends.control, {}));
      body(ends);
      return {};
    });
  };
}

/// The same with processes.
inline auto shm_processes(const char* ways, ProcessOptions options = {}) {
  return [=](int n, const RankBody& body) -> Result<> {
    const OnlyWays only(ways);
    const auto make = [](ControlPlane& control) { return shm::make_transport(control, {}); };
    return run_ranks_as_processes(n, make, body, options);
  };
}

}  // namespace reshard
