// SPDX-License-Identifier: Apache-2.0
#include "cli/rank_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cli/complain.h"
#include "cli/interrupt.h"
#include "cli/job_watch.h"
#include "cli/measure.h"
#include "cli/own_weights.h"
#include "cli/run_proof.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/transport/group.h"

namespace reshard::cli {
namespace {

/// How long a rank that fails waits for the others to have seen it too.
constexpr std::chrono::seconds kParting{2};

/// What every rank tells all others at the end.
struct RankFigures {
  Index bytes = 0, copies = 0, messages = 0, staging = 0, peak_rss = 0;
  double join = 0, fill = 0, prepare = 0, wait = 0, move = 0, finish = 0;
};

class RankRun {
 public:
  RankRun(const RunJob& job, const Place& place, TestKill kill)
      : job_(job), place_(place), kill_(kill), me_(place.join.rank) {}

  Result<int> live() {
    const Stopwatch joining;
    control_ = RESHARD_TRY(join(place_.join));
    watch_.emplace(*control_, speaks(), kill_);
    catch_interrupts();
    auto done = take_part(joining);
    if (!done) return fail(std::move(done).error());
    const int code = speak();
    leave();
    return code;
  }

 private:
  const RunArguments& arguments() const { return job_.arguments; }
  const Planner& planner() const { return *job_.pair.planner; }
  bool speaks() const { return me_ == place_.first; }
  Deadline deadline() const {
    return Deadline::after(std::chrono::duration<double>(arguments().deadline_seconds));
  }

  Result<> take_part(const Stopwatch& joining) {
    const TransportOptions options{arguments().interface, deadline()};
    transport_ = RESHARD_TRY(make_transport(arguments().transport, *control_, options));
    mine_.join = joining.seconds();
    kill_.at(TestKill::Point::prepare);
    RESHARD_TRY(fill());
    RESHARD_TRY(refit());
    kill_.at(TestKill::Point::end);
    if (arguments().verify) RESHARD_TRY(prove());
    return gather();
  }

  Result<> fill() {
    const Stopwatch filling;
    watch_->begin("fill", total_bytes(planner().source()));
    const bool shared = transport_->capabilities().direct;
    weights_ = RESHARD_TRY(own_weights(job_, me_, shared, watch_->reporting()));
    mine_.fill = filling.seconds();
    return control_->barrier(deadline());
  }

  Result<> refit() {
    const Stopwatch preparing;
    RankRefitOptions options;
    options.path = arguments().path;
    options.staging_bytes = arguments().staging_bytes;
    options.seconds = arguments().deadline_seconds;
    options.threads = job_.threads;
    options.progress = watch_->stopping();
    auto refit =
        RESHARD_TRY(RankRefit::prepare(planner(), weights_.source_or_null(),
                                       weights_.target_or_null(), *transport_, *control_, options));
    mine_.prepare = preparing.seconds();
    watch_->begin("refit", total_bytes(planner().target()), arguments().repeat);
    for (Index i = 0; i < arguments().repeat; ++i) {
      RESHARD_TRY(control_->barrier(deadline()));
      kill_.at(TestKill::Point::start);
      const Stopwatch watch;
      const RankReport report = RESHARD_TRY(refit.run());
      keep(report, watch.seconds());
    }
    kill_.at(TestKill::Point::middle);  // of a refit that was over before half of it was seen
    mine_.staging = refit.staging_bytes();
    outcome_.processes.emplace().path = refit.path();
    if (transport_->capabilities().direct) outcome_.processes->reason = refit.reason();
    // Peers read this rank's memory no more.
    return control_->barrier(deadline());
  }

  void keep(const RankReport& report, double seconds) {
    auto& all = outcome_.runs.seconds;
    if (all.empty() || seconds < *std::ranges::min_element(all)) {
      mine_.wait = report.wait_seconds;
      mine_.move = report.move_seconds;
      mine_.finish = report.finish_seconds;
    }
    all.push_back(seconds);
    mine_.bytes = report.bytes;
    mine_.copies = report.copies;
    mine_.messages = report.messages;
  }

  Result<> prove() {
    kill_.at(TestKill::Point::proof);
    const Stopwatch proving;
    watch_->begin("proof", total_bytes(planner().source()) + 2 * total_bytes(planner().target()));
    const auto seed = job_.model.weights ? std::nullopt : std::optional(arguments().seed);
    const RankProofOptions options{job_.threads, deadline(), watch_->reporting()};
    wrong_ = RESHARD_TRY(prove_rank_refit(planner(), weights_.source_or_null(),
                                          weights_.target_or_null(), seed, *transport_, *control_,
                                          options));
    outcome_.verify_seconds = proving.seconds();
    outcome_.verified = wrong_.empty();
    return {};
  }

  /// Adds up what all ranks did; after it, all of them are done.
  Result<> gather() {
    mine_.peak_rss = peak_rss_bytes();
    const auto all =
        RESHARD_TRY(control_->all_gather(std::as_bytes(std::span(&mine_, 1)), deadline()));
    ProcessFigures& p = *outcome_.processes;
    p.processes = control_->size();
    for (const auto& bytes : all) {
      RankFigures f;
      if (bytes.size() != sizeof f)
        return reshard::fail(Code::corrupt, "a rank's figures are not those of this program");
      std::memcpy(&f, bytes.data(), sizeof f);
      outcome_.runs.bytes += f.bytes;
      outcome_.runs.copies += f.copies;
      p.messages += f.messages;
      p.staging_bytes = std::max(p.staging_bytes, f.staging);
      p.peak_rss_bytes = std::max(p.peak_rss_bytes, f.peak_rss);
      p.join = std::max(p.join, f.join);
      p.fill = std::max(p.fill, f.fill);
      p.prepare = std::max(p.prepare, f.prepare);
      p.wait = std::max(p.wait, f.wait);
      p.move = std::max(p.move, f.move);
      p.finish = std::max(p.finish, f.finish);
    }
    return {};
  }

  /// The report, or that the refit is wrong, which all ranks know.
  int speak() {
    watch_->wipe();
    if (!speaks()) return wrong_.empty() ? 0 : 1;
    if (arguments().json) print(run_json(job_, outcome_));
    if (!wrong_.empty()) {
      say({Code::corrupt, "the refit is wrong: " + wrong_});
      return 1;
    }
    if (!arguments().json) print(run_text(job_, outcome_));
    return 0;
  }

  void say(const Error& error) const {
    if (place_.spawned) {
      tell_parent(*place_.spawned, error);
    } else {
      complain(error.message);
    }
  }

  /// Tells the group and, where it falls to this rank, the user.
  int fail(Error error) {
    control_->abort(error.message);
    watch_->wipe();
    // Lower ranks of this program that are gone cannot speak; the others do. To leave is to be
    // gone as well, so nobody leaves before all others have looked: the refit may have made them
    // quiesce once already, hence twice.
    const auto lost = watch_->lost();
    bool lower_lives = false;
    for (int r = place_.first.value(); r < me_.value(); ++r)
      lower_lives |= !std::ranges::binary_search(lost, Rank(r));
    if (place_.spawned || !lower_lives) say(cause_of(std::move(error)));
    const int times = place_.spawned ? 1 : 2;
    for (int i = 0; i < times; ++i)
      if (!control_->quiesce(Deadline::after(kParting))) break;
    leave();
    return interrupted() ? 130 : 1;
  }

  void leave() {
    if (transport_) transport_->close();
    control_->close();
    (void)finish_serving(Deadline::after(kParting));
  }

  /// What ended the group, where this rank's own error is only a consequence of it.
  Error cause_of(Error error) const {
    if (error.code != Code::aborted) return error;
    const auto end = watch_->end();
    return end ? error : end.error();
  }

  const RunJob& job_;
  const Place& place_;
  TestKill kill_;
  Rank me_;
  OwnWeights weights_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<Transport> transport_;
  std::optional<JobWatch> watch_;
  RankFigures mine_;
  Outcome outcome_;
  std::string wrong_;
};

}  // namespace

Result<int> run_rank(const RunJob& job, const Place& place) {
  const TestKill kill = RESHARD_TRY(TestKill::of_environment(place.join.rank));
  return RankRun(job, place, kill).live();
}

}  // namespace reshard::cli
