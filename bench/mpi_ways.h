// SPDX-License-Identifier: Apache-2.0
// The same refit as an MPI programmer would write it.
#pragma once

#include <memory>

#include "bench/rank_job.h"

namespace reshard::bench {

/// All copies of the plan between ranks, by plain MPI on MPI_COMM_WORLD, whose ranks are the job's.
/// In programs built without MPI, make() returns an error.
class MpiWays {
 public:
  /// Collective. The job must outlive this object.
  static Result<std::unique_ptr<MpiWays>> make(const RankJob& job);
  virtual ~MpiWays() = default;

  /// One MPI_Alltoallw with a derived datatype per peer; packs nothing by hand.
  virtual Contender alltoallw() = 0;
  /// Packs one buffer per peer by loops, exchanges all by MPI_Isend and MPI_Irecv, and unpacks.
  virtual Contender isend() = 0;
};

}  // namespace reshard::bench
