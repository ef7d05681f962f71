// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/exec/rank_refit.h"
#include "reshard/plan/planner.h"
#include "reshard/refit/session.h"

namespace reshard {

/// What a job is prepared from, on one rank.
struct JobInput {
  Transport& transport;
  ControlPlane& control;
  const SessionSide& source;
  const SessionSide& target;
  const SessionOptions& options;
  Rank me() const { return transport.rank(); }
};

/// What a session runs in each refit: plans and refits that were made once. A job of plain layouts
/// is one plan.
class Job {
 public:
  /// Collective. Errors: as Session::prepare(); those that not all ranks find alike have ended the
  /// group.
  static Result<Job> prepare(const JobInput& input);
  Job(Job&&) noexcept = default;
  Job& operator=(Job&&) noexcept = default;

  /// Collective. Moves everything into copy `copy` of the target and adds to the report. On error
  /// the group is finished, and peers have left this rank's memory.
  Result<> run(int copy, SessionReport& report);

  const std::vector<PeerVolume>& peers() const { return peers_; }
  const ConversionCounts& conversions() const { return conversions_; }
  std::string_view path() const;
  const std::string& reason() const;
  Index staging_bytes() const;
  /// By TensorId: whether the job moves it.
  const std::vector<bool>& moved() const { return moved_; }

 private:
  /// One plan, and how it runs into each copy.
  struct Wave {
    std::unique_ptr<Planner> planner;
    std::array<std::optional<RankRefit>, 2> refits;
  };

  Job() = default;
  Result<> add_plain(const JobInput& input);
  void count_peers(const Planner& planner, Rank me);

  std::vector<Wave> waves_;
  std::vector<PeerVolume> peers_;
  ConversionCounts conversions_;
  std::vector<bool> moved_;
};

}  // namespace reshard
