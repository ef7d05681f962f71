// SPDX-License-Identifier: Apache-2.0
// What a refit between processes is compared with.
#pragma once

#include <memory>
#include <vector>

#include "bench/rank_job.h"
#include "reshard/exec/in_process.h"
#include "reshard/exec/plain_copy.h"
#include "reshard/exec/rank_refit.h"

namespace reshard::bench {

/// The ceiling of one host: each rank copies as many bytes as are delivered to it, in long runs,
/// from other ranks' plain memory. Contenders: if peers' memory is mapped, "pull_libc" etc., one
/// for each of plain_ways(); else "pull_get", by the transport's get().
class PlainPulls {
 public:
  /// Collective. `shared`: as for the job's memory. The job must outlive this object.
  static Result<std::unique_ptr<PlainPulls>> make(const RankJob& job, bool shared);
  std::vector<Contender> contenders();

 private:
  explicit PlainPulls(const RankJob& job) : job_(job) {}
  Result<> open_peers();
  /// Uses the transport's get() if `way` is null.
  Result<> pull(const PlainWay* way);

  const RankJob& job_;
  HostBuffer plain_, into_;
  std::vector<RemoteMemory> peers_;
  Index bytes_ = 0, block_ = 0;
};

/// The way of frameworks without layouts, over the same transport: bring whole tensors together,
/// and every engine rank cuts out its own part.
class WholeTensors {
 public:
  enum class Way {
    broadcast,  ///< every source rank sends all its weights to every target rank.
    gather,     ///< everything to one source rank, and from there to every target rank.
  };
  /// Collective. The job must outlive it.
  static Result<std::unique_ptr<WholeTensors>> make(const RankJob& job, Way way);
  Contender contender();

 private:
  /// One refit between two of the layouts on the way.
  struct Step {
    Planner planner;
    std::unique_ptr<RankRefit> refit;
  };
  WholeTensors(const RankJob& job, Way way) : job_(job), way_(way) {}
  Result<> add_step(const std::shared_ptr<const ModelLayout>& from, const RankBuffers* source,
                    const std::shared_ptr<const ModelLayout>& to, const RankBuffers* target);

  const RankJob& job_;
  Way way_;
  std::unique_ptr<RankBuffers> gathered_, whole_;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace reshard::bench
