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

/// One process's part of work that a group of processes measures together: its place in the group,
/// the layouts, its own memory on both sides (none where it is not a rank of that side).
struct RankJob {
  std::string transport;
  ProcessGroup group;
  Case layouts;
  std::unique_ptr<Planner> planner;
  std::unique_ptr<RankBuffers> source, target;

  Rank rank() const { return group.control->rank(); }
  int size() const { return group.control->size(); }
  /// Bytes delivered to this rank, its own local ones included.
  Result<Index> bytes_delivered() const;
  /// Collective. The sum of a number over the ranks.
  Result<Index> sum(Index mine) const;
  /// Collective. The largest of a number over the ranks.
  Result<Index> max(Index mine) const;
};

/// Joins the group that the launcher's environment places this process in (see launched()), by
///   --transport NAME --rendezvous URL [--secret-file FILE] [--interface IF] [--memory
///   shared|private]
/// and a case (see case.h), and fills the source with the oracle's values. `shared`: both sides in
/// memory that other processes can map.
Result<RankJob> join_job(Arguments& arguments);

/// Work of all ranks as a contender: begins together and ends when the last one has.
Contender together(const RankJob& job, std::string name, std::function<Result<>()> work);

/// For every wait of a benchmark: long, as only something broken reaches it.
Deadline patient();

}  // namespace reshard::bench
