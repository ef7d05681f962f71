// SPDX-License-Identifier: Apache-2.0
// What an MPI programmer would write for the same refit.
#pragma once

#include <memory>

#include "bench/rank_job.h"

namespace reshard::bench {

/// Every source-to-destination copy of the plan by plain MPI on MPI_COMM_WORLD, whose ranks are the
/// job's. In programs that are built without MPI, make() is an error.
class MpiWays {
 public:
  /// Collective. The job must outlive it.
  static Result<std::unique_ptr<MpiWays>> make(const RankJob& job);
  virtual ~MpiWays() = default;

  /// One MPI_Alltoallw with a derived datatype for each peer: nothing is packed by hand.
  virtual Contender alltoallw() = 0;
  /// Loops that pack one buffer for each peer, MPI_Isend and MPI_Irecv of them all, loops that
  /// unpack.
  virtual Contender isend() = 0;
};

}  // namespace reshard::bench
