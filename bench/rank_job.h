// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "bench/common/case.h"
#include "bench/common/turns.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/group.h"

namespace reshard::bench {

/// One process's part of a benchmark that a group of processes runs together: its group, the
/// layouts, and its memory on both sides (null if it is not a rank of that side).
struct RankJob {
  std::string transport;
  ProcessGroup group;
  Case layouts;
  std::unique_ptr<Planner> planner;
  std::unique_ptr<RankBuffers> source, target;

  Rank rank() const { return group.control->rank(); }
  int size() const { return group.control->size(); }
  /// Bytes delivered to this rank, including its local ones.
  Result<Index> bytes_delivered() const;
  /// Collective. The sum of `mine` over all ranks.
  Result<Index> sum(Index mine) const;
  /// Collective. The maximum of `mine` over all ranks.
  Result<Index> max(Index mine) const;
};

/// Joins the group that the launcher's environment assigns (see launched()) and fills the source
/// with the oracle's values. Arguments:
///   --transport NAME --rendezvous URL [--secret-file FILE] [--interface IF]
///   [--memory shared|private]
/// and those of a case (see case.h). `shared`: both sides are in memory that other processes can
/// map.
Result<RankJob> join_job(Arguments& arguments);

/// A contender of all ranks: they begin together, and it ends when the last rank has finished.
Contender together(const RankJob& job, std::string name, std::function<Result<>()> work);

/// The deadline of every wait in a benchmark: long, since only a failure reaches it.
Deadline patient();

}  // namespace reshard::bench
