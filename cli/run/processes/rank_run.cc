// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/rank_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/complain.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/measure.h"
#include "cli/run/device_run.h"
#include "cli/run/gpu_weights.h"
#include "cli/run/processes/job_watch.h"
#include "cli/run/rank_session.h"
#include "cli/run/rank_weights.h"
#include "reshard/refit/session_report.h"
#include "reshard/transport/group.h"

namespace reshard::cli {
namespace {

/// How long a failing rank waits until the others have seen the failure.
constexpr std::chrono::seconds kParting{2};

class RankRun {
 public:
  RankRun(const RunJob& job, RankPlace& place, TestKill kill)
      : job_(job), place_(place), kill_(kill), me_(place.join.rank) {}

  Result<int> live() {
    const Stopwatch joining;
    // From here on an interrupt cleans up, including what was written for ranks that join later.
    catch_interrupts();
    RendezvousOptions how = place_.join;
    how.gives_up = [] { return interrupted() ? interruption().message : ""; };
    auto joined = join(how);
    place_.listener = FileDescriptor();  // whoever comes later is refused
    if (!joined && place_.spawned && interrupted())
      return tl::unexpected(Error{
          Code::aborted, fmt::format("rank {} aborted: {}", me_.value(), joined.error().message)});
    control_ = RESHARD_TRY(std::move(joined));
    watch_.emplace(*control_, speaks(), kill_);
    auto done = take_part(joining);
    if (!done) return fail(std::move(done).error());
    const int code = speak();
    leave();
    return code;
  }

 private:
  const RunArguments& arguments() const { return job_.arguments; }
  bool speaks() const { return me_ == place_.first; }
  Deadline deadline() const {
    return Deadline::after(std::chrono::duration<double>(arguments().deadline_seconds));
  }

  Result<> take_part(const Stopwatch& joining) {
    TransportOptions options{.interface = arguments().interface, .deadline = deadline()};
    if (arguments().gpu) {
      gpu_ = RESHARD_TRY(open_gpu(*arguments().gpu, me_.value()));
      options.gpu = gpu_->ordinal();
    }
    transport_ = RESHARD_TRY(make_transport(arguments().transport, *control_, options));
    const double joined = joining.seconds();
    kill_.at(TestKill::Point::prepare);
    const Stopwatch filling;
    RESHARD_TRY(fill());
    task_.emplace(RankTask{job_, weights_, gpu_weights_ ? &*gpu_weights_ : nullptr, *transport_,
                           *control_, job_.threads, watch_->stopping(), watch_->reporting(),
                           [this](TestKill::Point point) { kill_.at(point); },
                           [this](std::string_view phase, Index bytes, Index times) {
                             watch_->begin(phase, bytes, times);
                           }});
    RankSession& session = session_.emplace(*task_);
    session.spent(joined, filling.seconds());
    RESHARD_TRY(control_->barrier(deadline()));
    RESHARD_TRY(session.refit());
    kill_.at(TestKill::Point::end);
    if (arguments().verify) RESHARD_TRY(session.verify());
    return session.gather();
  }

  Result<> fill() {
    watch_->begin("fill", total_bytes(*job_.pair.from.stored()));
    const bool shared = transport_->capabilities().direct && gpu_ == nullptr;
    weights_ = RESHARD_TRY(rank_weights(job_, me_, shared, watch_->reporting()));
    if (gpu_ != nullptr) gpu_weights_ = RESHARD_TRY(GpuWeights::copy_of(weights_, gpu_));
    return {};
  }

  /// Prints the report, or that the refit is wrong, which all ranks know.
  int speak() {
    watch_->wipe();
    Outcome outcome = session_->outcome();
    if (!speaks()) return outcome.wrong.empty() ? kDone : kFailed;
    if (arguments().json) print(run_json(job_, outcome));
    if (!outcome.wrong.empty()) {
      say({Code::corrupt, "the refit is wrong: " + outcome.wrong});
      return kFailed;
    }
    if (!arguments().json) print(run_text(job_, outcome));
    return kDone;
  }

  void say(const Error& error) const {
    if (place_.spawned) {
      report_to_parent(*place_.spawned, error);
    } else {
      complain(error.message);
    }
  }

  /// Tells the group and, if it is this rank's turn, the user.
  int fail(Error error) {
    const Code code = error.code;
    control_->abort(error.message);
    watch_->wipe();
    // The lowest living rank of this program prints. A rank that leaves counts as gone, so nobody
    // leaves before all others have looked. The refit may have quiesced once already, hence twice.
    const auto lost = watch_->lost();
    bool lower_lives = false;
    for (int r = place_.first.value(); r < me_.value(); ++r)
      lower_lives |= !std::ranges::binary_search(lost, Rank(r));
    if (place_.spawned || !lower_lives) say(cause_of(std::move(error)));
    const int times = place_.spawned ? 1 : 2;
    for (int i = 0; i < times; ++i)
      if (!control_->quiesce(Deadline::after(kParting))) break;
    leave();
    return exit_code({code, ""});
  }

  void leave() {
    if (transport_) transport_->close();
    control_->close();
    (void)finish_serving(Deadline::after(kParting));
  }

  /// The error that ended the group, if this rank's own is only a consequence of it.
  Error cause_of(Error error) const {
    if (error.code != Code::aborted) return error;
    const auto end = watch_->end();
    return end ? error : end.error();
  }

  const RunJob& job_;
  RankPlace& place_;
  TestKill kill_;
  Rank me_;
  RankWeights weights_;
  std::shared_ptr<const cuda::Device> gpu_;  ///< null: weights stay in host memory.
  std::optional<GpuWeights> gpu_weights_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<Transport> transport_;
  std::optional<JobWatch> watch_;
  std::optional<RankTask> task_;
  std::optional<RankSession> session_;
};

}  // namespace

Result<int> run_rank(const RunJob& job, RankPlace place) {
  const TestKill kill = RESHARD_TRY(TestKill::of_environment(place.join.rank));
  return RankRun(job, place, kill).live();
}

}  // namespace reshard::cli
