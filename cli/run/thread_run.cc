// SPDX-License-Identifier: Apache-2.0
#include "cli/run/thread_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "cli/interrupt.h"
#include "cli/run/processes/rank_place.h"
#include "cli/run/rank_session.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard::cli {
namespace {

/// Ranks as threads that share a group.
class ThreadRun {
 public:
  ThreadRun(const RunJob& job, const RankWeights& weights, InprocGroup group)
      : job_(job), weights_(weights), group_(std::move(group)) {}

  Result<Outcome> run(TargetVersion& version) {
    {
      std::vector<std::jthread> ranks;
      for (int r = 0; r < group_.size(); ++r)
        ranks.emplace_back([this, r] { keep(live(Rank(r))); });
    }
    if (failed_) return tl::unexpected(error_);
    version = target_version_;
    return std::move(outcome_);
  }

 private:
  Result<> live(Rank r) {
    const auto transport = RESHARD_TRY(group_.transport(r));
    const auto control = RESHARD_TRY(group_.control(r));
    auto done = refit(r, *transport, *control);
    if (!done) control->abort(done.error().message);
    return done;
  }

  Result<> refit(Rank r, Transport& transport, ControlPlane& control) {
    const Progress go_on = [](std::string_view, Index, Index) { return !interrupted(); };
    const RankTask task{job_,
                        weights_,
                        nullptr,
                        transport,
                        control,
                        std::max(1, job_.threads / group_.size()),
                        go_on,
                        go_on,
                        [](TestKill::Point) {},
                        [](std::string_view, Index, Index) {}};
    RankSession session(task);
    RESHARD_TRY(session.refit());
    RESHARD_TRY(session.gather());
    const std::lock_guard lock(mutex_);
    if (r == Rank(0)) outcome_ = session.outcome();
    // Ranks that hold nothing of the target have no version.
    if (session.target_version().state == TargetState::whole)
      target_version_ = session.target_version();
    return {};
  }

  /// Keeps the first error: the others only say that some rank failed.
  void keep(const Result<>& outcome) {
    if (outcome) return;
    const std::lock_guard lock(mutex_);
    if (failed_ && (error_.code != Code::aborted || outcome.error().code == Code::aborted)) return;
    failed_ = true;
    error_ = outcome.error();
  }

  const RunJob& job_;
  const RankWeights& weights_;
  InprocGroup group_;
  std::mutex mutex_;
  Outcome outcome_;
  TargetVersion target_version_;
  bool failed_ = false;
  Error error_;
};

}  // namespace

Result<Outcome> run_threads(const RunJob& job, const RankWeights& weights, TargetVersion& version) {
  const int world = world_of(*job.pair.planner);
  if (world > kMaxThreadRanks)
    return fail(
        Code::unsupported,
        fmt::format("{0} ranks need {0} threads, and at most {1} are possible; use fewer "
                    "ranks, or leave out "
                    "--path message, --buffering doubled, --verify=fingerprints and --trace",
                    world, kMaxThreadRanks));
  return ThreadRun(job, weights, RESHARD_TRY(InprocGroup::create(world))).run(version);
}

}  // namespace reshard::cli
