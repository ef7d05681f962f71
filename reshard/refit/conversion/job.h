// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/pinned_range.h"
#include "reshard/cuda/stream.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/memory/worker_pool.h"
#include "reshard/refit/conversion/carried_tensors.h"
#include "reshard/refit/conversion/planned_move.h"
#include "reshard/refit/conversion/target_digests.h"

namespace reshard::conversion {

/// The inputs of Job::prepare() on one rank.
struct JobInput {
  Transport& transport;
  ControlPlane& control;
  const SessionSide& source;
  const SessionSide& target;
  const SessionOptions& options;
  Index staging_bytes;             ///< the minimum of all ranks' caps.
  TraceRecorder* trace = nullptr;  ///< gets the events of all programs; null: none.
};

/// The plans, conversions and memory that a session makes once and runs in each refit. One move
/// follows another: first tensors that need no conversion, then those of each other route. Whole
/// matrices between two moves share the memory of those between other two.
class Job {
 public:
  /// Collective. Errors: as Session::prepare(); an error that is not identical on all ranks has
  /// aborted the group.
  static Result<std::unique_ptr<Job>> prepare(const JobInput& input);

  /// Collective. As RankRefit::renew_memory().
  Result<> renew_memory();

  /// Collective. Moves everything into copy `copy` of the target and adds to the report. With
  /// `verify`, verifies what arrives before it is converted, and every conversion. Errors:
  /// `corrupt`, identical on all ranks; any other error has aborted the group, and peers no longer
  /// access this rank's memory.
  Result<> run(int copy, bool verify, SessionReport& report);
  /// Collective. Verifies the tensors that run() does not: those that move from memory to memory.
  /// Then records what the copy holds. Errors: as PlannedMove::check().
  Result<> check(int copy);
  /// Collective. Verifies that the copy holds what the last check() recorded (`recorded`), or what
  /// the sources hold now. Errors: as PlannedMove::check().
  Result<> check_again(int copy, bool recorded);

  const std::vector<PeerVolume>& peers() const { return peers_; }
  const ConversionCounts& conversions() const { return routes_.counts; }
  const RelaySummary* relays() const;
  std::string_view path() const;
  const std::string& reason() const;
  Index staging_bytes() const;

 private:
  explicit Job(const JobInput& input);
  Result<std::shared_ptr<const RelayOptions>> find_places(const JobInput& input) const;
  Result<> plan(const JobInput& input);
  Result<> place(const JobInput& input);
  Result<> place_moves();
  Result<> clear(StagingTensors& between) const;
  void count_peers();
  Result<> allocate_staging(Index bytes);
  Result<JobMemory::Forms> forms(const SessionSide& side, const RankBuffers* stored);
  Result<> find_converted();
  /// The digests of converted_ in a copy of the target. Null: the rank has no target.
  TargetDigests* digests(int copy);
  const std::shared_ptr<const cuda::Device>& gpu() const {
    return gpu_of(source_.buffers, target_.buffers);
  }

  JobGroup group_;
  SessionSide source_, target_;
  WorkerPool pool_;
  Routes routes_;
  std::vector<PlannedMove> moves_;
  /// A view of the tensors of a quantised side that are plain values.
  struct View {
    const RankBuffers* of = nullptr;
    std::unique_ptr<RankBuffers> values;
  };
  std::vector<View> views_;
  JobMemory memory_;
  HostBuffer arena_, staging_;
  cuda::Buffer gpu_arena_;  ///< instead of arena_, if the rank has memory on a GPU.
  std::optional<cuda::Stream> between_stream_;  ///< where what is in gpu_arena_ is cleared.
  /// Instead of staging_, if also the transport takes messages there.
  cuda::Buffer gpu_staging_;
  cuda::PinnedRange pinned_staging_;
  std::vector<PeerVolume> peers_;
  std::vector<PartRows> converted_;      ///< what conversions write of this rank's target.
  std::vector<TargetDigests> digests_;   ///< by copy of the target.
  std::vector<std::uint64_t> recorded_;  ///< their digests as of the last check().
  CarriedTensors carried_;
};

}  // namespace reshard::conversion
