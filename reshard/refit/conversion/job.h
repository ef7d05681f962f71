// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/refit/conversion/wave.h"

namespace reshard {

/// What a job is prepared from, on one rank.
struct JobInput {
  Transport& transport;
  ControlPlane& control;
  const SessionSide& source;
  const SessionSide& target;
  const SessionOptions& options;
  Index staging_bytes;  ///< the least of all ranks' caps.
};

/// What a session runs in each refit: plans, conversions and memory that were made once. Tensors
/// that need no conversion go first, from memory to memory; the others in waves, through landing
/// memory that all waves share.
class Job {
 public:
  /// Collective. Errors: as Session::prepare(); those that not all ranks find alike have ended the
  /// group.
  static Result<std::unique_ptr<Job>> prepare(const JobInput& input);

  /// Collective. Moves everything into copy `copy` of the target and adds to the report; with
  /// `proved`, fingerprints what lands before it is converted. Errors: `corrupt`, alike on all
  /// ranks; after any other the group is finished, and peers have left this rank's memory.
  Result<> run(int copy, bool proved, SessionReport& report);
  /// Collective. What run() has not: fingerprints of what went from memory to memory; and remembers
  /// what the copy holds now. Errors: as PlannedMove::check().
  Result<> check(int copy);
  /// Collective. The copy holds what check() saw there last where `recorded`; else what the sources
  /// give now. Errors: as PlannedMove::check().
  Result<> check_again(int copy, bool recorded);

  const std::vector<PeerVolume>& peers() const { return peers_; }
  const ConversionCounts& conversions() const { return routes_.counts; }
  std::string_view path() const;
  const std::string& reason() const;
  Index staging_bytes() const;

 private:
  Job(const JobInput& input, bool banded);
  static Result<std::unique_ptr<Job>> prepare(const JobInput& input, bool banded);
  Result<> plan(const JobInput& input);
  void add_waves(const JobInput& input);
  Result<> place(const JobInput& input);
  Result<> prepare_moves();
  void count_peers();
  Result<const RankBuffers*> values_view(const SessionSide& side, const RankBuffers* stored);
  Wave::Memory memory();
  void find_converted(const std::vector<bool>& converts);
  std::uint64_t seal(std::size_t i, int copy) const;

  JobGroup group_;
  bool banded_;
  SessionSide source_, target_;
  WorkerPool pool_;
  Routes routes_;
  std::vector<Wave> waves_;
  std::vector<std::unique_ptr<RankBuffers>> views_;
  const RankBuffers* source_values_ = nullptr;
  std::vector<const RankBuffers*> target_values_, target_stored_;  ///< by copy.
  HostBuffer arena_, staging_;
  std::vector<PeerVolume> peers_;
  std::vector<SlotId> converted_;      ///< this rank's in the target's memory that no move fills.
  std::vector<std::uint64_t> sealed_;  ///< digests of them, as check() found them.
};

}  // namespace reshard
