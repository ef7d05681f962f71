// SPDX-License-Identifier: Apache-2.0
#include "cli/run_refit.h"

#include <fmt/format.h>

#include <mutex>
#include <thread>

#include "cli/interrupt.h"
#include "cli/measure.h"
#include "cli/progress_bar.h"
#include "reshard/exec/direct.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/transport/inproc.h"

namespace reshard::cli {
namespace {

Result<> run_direct(DirectRefit& refit, Index repeat, RefitRuns& runs) {
  for (Index i = 0; i < repeat; ++i) {
    const RefitReport report = RESHARD_TRY(refit.run());
    runs.seconds.push_back(report.seconds);
    runs.bytes = report.bytes;
    runs.copies = report.copies;
  }
  return {};
}

/// The ranks of a run on the message path: threads that share the group and what they found out.
class MessageRun {
 public:
  MessageRun(const Planner& planner, const RankBuffers& source, const RankBuffers& target,
             const RunArguments& arguments, InprocGroup group)
      : planner_(planner),
        source_(source),
        target_(target),
        arguments_(arguments),
        group_(std::move(group)) {}

  Result<> run(RefitRuns& runs) {
    {
      std::vector<std::jthread> ranks;
      for (int r = 0; r < group_.size(); ++r)
        ranks.emplace_back([this, r] { keep(live(Rank(r))); });
    }
    if (failed_) return tl::unexpected(error_);
    runs.seconds = seconds_;
    runs.bytes = bytes_;
    runs.copies = copies_;
    return {};
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
    RankRefitOptions options;
    options.path = RefitPath::message;
    options.staging_bytes = arguments_.staging_bytes;
    options.progress = [](std::string_view, Index, Index) { return !interrupted(); };
    auto refit =
        RESHARD_TRY(RankRefit::prepare(planner_, &source_, &target_, transport, control, options));
    for (Index i = 0; i < arguments_.repeat; ++i) {
      RESHARD_TRY(control.barrier(Deadline::never()));
      const Stopwatch watch;
      const RefitReport report = RESHARD_TRY(refit.run());
      RESHARD_TRY(control.barrier(Deadline::never()));
      const std::lock_guard lock(mutex_);
      if (r.value() == 0) seconds_.push_back(watch.seconds());
      if (i > 0) continue;
      bytes_ += report.bytes;
      copies_ += report.copies;
    }
    return {};
  }

  /// Keeps the error that came first: the others only say that some rank failed.
  void keep(const Result<>& outcome) {
    if (outcome) return;
    const std::lock_guard lock(mutex_);
    if (failed_ && (error_.code != Code::aborted || outcome.error().code == Code::aborted)) return;
    failed_ = true;
    error_ = outcome.error();
  }

  const Planner& planner_;
  const RankBuffers& source_;
  const RankBuffers& target_;
  const RunArguments& arguments_;
  InprocGroup group_;
  std::mutex mutex_;
  std::vector<double> seconds_;
  Index bytes_ = 0, copies_ = 0;
  bool failed_ = false;
  Error error_;
};

}  // namespace

Result<RefitRuns> run_refit(const Planner& planner, const RankBuffers& source,
                            const RankBuffers& target, const RunArguments& arguments, int threads) {
  RefitRuns runs;
  ProgressBar bar;
  DirectOptions options;
  options.threads = threads;
  options.progress = bar.from();
  auto direct = RESHARD_TRY(DirectRefit::prepare(planner, source, target, options));
  if (arguments.path != RefitPath::message) {
    RESHARD_TRY(run_direct(direct, arguments.repeat, runs));
  } else {
    const auto ranks = planner.ranks().members();
    const Index world = ranks.empty() ? 1 : Index{ranks.back().value()} + 1;
    if (world > kMaxThreadRanks)
      return fail(
          Code::unsupported,
          fmt::format("--path message: {} ranks would be as many threads, at most {} are run; "
                      "use --path direct",
                      world, kMaxThreadRanks));
    MessageRun run(planner, source, target, arguments,
                   RESHARD_TRY(InprocGroup::create(static_cast<int>(world))));
    RESHARD_TRY(run.run(runs));
  }
  runs.plain_seconds = RESHARD_TRY(direct.plain_copy_seconds());
  return runs;
}

}  // namespace reshard::cli
