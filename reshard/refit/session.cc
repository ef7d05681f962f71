// SPDX-License-Identifier: Apache-2.0
// One refit is: begin (one all_gather: versions and digests), transfer (the job), check (the
// proof), and commit in two steps. After the first barrier of the commit every rank knows that
// every rank's check was good, and makes its word whole; after the second it knows that all words
// are.
#include "reshard/refit/session.h"

#include <fmt/format.h>

#include "reshard/exec/end_group.h"
#include "reshard/exec/rank_path.h"
#include "reshard/refit/session/state.h"
#include "reshard/refit/session/verdict.h"

namespace reshard {
std::string_view name(SessionPhase phase) {
  switch (phase) {
    case SessionPhase::begin: return "begin";
    case SessionPhase::transfer: return "transfer";
    case SessionPhase::check: return "check";
    case SessionPhase::commit: return "commit";
    case SessionPhase::committed: return "committed";
  }
  return "committed";
}

bool Session::State::has_target() const { return target.buffers != nullptr; }

int Session::State::next_copy() const {
  const bool doubled = options.buffering == Buffering::doubled;
  return doubled && has_target() ? 1 - published->target_version().buffer : 0;
}

TargetVersion Session::State::target_version() const { return published->target_version(); }

Deadline Session::State::deadline() const {
  return Deadline::after(std::chrono::duration<double>(options.refit.seconds));
}

tl::unexpected<Error> Session::State::finish(Error error) {
  auto ended = end_group(control, std::move(error));
  finished = ended.value();
  return ended;
}

Error Session::State::explained(Error error, std::int64_t version) const {
  const TargetVersion now = target_version();
  std::string holds;
  if (has_target())
    holds = fmt::format("; this rank's target is {}", name(now.state)) +
            (now.state == TargetState::whole ? fmt::format(" at version {}", now.version) : "");
  error.message += holds;
  return std::move(error).in(fmt::format("refit of version {} failed at {}", version, name(phase)));
}

Result<> Session::State::enter(SessionPhase next) {
  phase = next;
  if (!options.on_phase) return {};
  if (auto done = options.on_phase(next); !done) return finish(std::move(done).error());
  return {};
}

Result<> Session::State::begin(std::int64_t version, SessionReport& report) {
  const PhaseClock clock;
  if (auto done = exchange_records(record(BeginRecord::Kind::refit, version), control, deadline(),
                                   told, words);
      !done)
    return finish(std::move(done).error());
  RESHARD_TRY(same_call(told));
  RESHARD_TRY(same_version(told));
  const std::string change = first_change(agreed, told);
  report.begin_seconds = clock.seconds();
  if (change.empty() && job) return {};
  if (!options.replan)
    return fail(Code::invalid_argument,
                change + "; prepare a new session, or allow this one to plan anew");
  RESHARD_TRY(same_job(told));
  auto made = make_job();
  report.plan_seconds = clock.seconds() - report.begin_seconds;
  return made;
}

Result<> Session::State::transfer_and_check(int copy, std::int64_t version, SessionReport& report) {
  if (options.buffering == Buffering::in_place) {
    if (has_target()) published->set({TargetState::torn, published->target_version().version, 0});
    is_recorded = false;
  }
  RESHARD_TRY(enter(SessionPhase::transfer));
  const bool proved = options.verify == VerifyMode::always;
  if (auto moved = job->run(copy, proved, report); !moved) {
    // A verdict is the same on every rank, so that all can go on with another refit.
    if (!is_verdict(control, moved.error())) finished = moved.error();
    return moved;
  }
  RESHARD_TRY(enter(SessionPhase::check));
  if (proved) {
    const PhaseClock clock;
    auto checked = job->check(copy);
    report.check_seconds += clock.seconds();
    // What the job remembers now may be of the copy that failed.
    is_recorded = is_recorded && checked;
    if (!checked && !is_verdict(control, checked.error()))
      return finish(std::move(checked).error());
    RESHARD_TRY(std::move(checked));
  }
  report.version = version;
  return {};
}

Result<> Session::State::commit(int copy, std::int64_t version, SessionReport& report) {
  const PhaseClock clock;
  RESHARD_TRY(enter(SessionPhase::commit));
  // All or nobody: whoever failed before has ended the group, and nobody passes.
  if (auto prepared = control.barrier(deadline()); !prepared)
    return finish(std::move(prepared).error());
  if (has_target()) published->set({TargetState::whole, version, copy});
  is_recorded = options.verify == VerifyMode::always;
  RESHARD_TRY(enter(SessionPhase::committed));
  if (auto all = control.barrier(deadline()); !all) return finish(std::move(all).error());
  report.commit_seconds = clock.seconds();
  return {};
}

Result<SessionReport> Session::State::refit(std::int64_t version) {
  if (finished)
    return fail(
        Code::invalid_argument,
        "this session's group is finished; prepare one on a new group: " + finished->message);
  const PhaseClock clock;
  SessionReport report;
  RESHARD_TRY(enter(SessionPhase::begin));
  RESHARD_TRY(begin(version, report));
  const int copy = next_copy();
  RESHARD_TRY(transfer_and_check(copy, version, report));
  RESHARD_TRY(commit(copy, version, report));
  report.seconds = clock.seconds();
  return report;
}

Result<> Session::State::verify() {
  if (finished)
    return fail(Code::invalid_argument, "this session's group is finished: " + finished->message);
  const int copy = has_target() ? published->target_version().buffer : 0;
  auto done = job->check_again(copy, is_recorded);
  if (!done && !is_verdict(control, done.error())) return finish(std::move(done).error());
  return done;
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<SessionReport> Session::refit(std::int64_t version) {
  auto report = state_->refit(version);
  if (!report) return tl::unexpected(state_->explained(std::move(report).error(), version));
  return report;
}

Result<> Session::verify() { return state_->verify(); }
TargetVersion Session::target_version() const { return state_->target_version(); }
const std::vector<PeerVolume>& Session::peers() const { return state_->job->peers(); }
std::string_view Session::path() const { return state_->job->path(); }
const std::string& Session::reason() const { return state_->job->reason(); }
std::uint64_t Session::digest() const { return state_->digest; }
Index Session::staging_bytes() const { return state_->job->staging_bytes(); }
const ConversionCounts& Session::conversions() const { return state_->job->conversions(); }

}  // namespace reshard
