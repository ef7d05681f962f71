// SPDX-License-Identifier: Apache-2.0
// One refit: begin (one all_gather of versions and digests), transfer (the job), check, and a
// commit in two steps. After the first barrier of the commit every rank knows that all ranks'
// checks succeeded, and publishes its version as whole; after the second it knows that all ranks
// have.
#include "reshard/refit/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/stopwatch.h"
#include "reshard/exec/agreement.h"
#include "reshard/refit/session_state.h"

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

using conversion::is_verdict;
using session::BeginRecord;

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
  if (finished)
    return fail(
        Code::invalid_argument,
        "this session's group was aborted; prepare a session on a new group: " + finished->message);
  const Stopwatch clock;
  if (tracer) tracer->restart(version);
  const TracedPhase traced(tracing(), "begin");
  RESHARD_TRY(enter(SessionPhase::begin));
  watch_memory();
  if (auto done = session::exchange_records(record(BeginRecord::Kind::refit, version), control,
                                            deadline(), received, exchange);
      !done)
    return finish(std::move(done).error());
  RESHARD_TRY(session::same_call(received));
  RESHARD_TRY(session::same_version(received));
  const std::string change = session::first_change(agreed, received);
  report.begin_seconds = clock.seconds();
  if (change.empty() && !jobs.empty()) return renew_memory();
  if (!options.replan)
    return fail(Code::invalid_argument,
                change + "; prepare a new session, or set the option `replan`");
  RESHARD_TRY(session::same_job(received));
  const TracedPhase planning(tracing(), "plan");
  auto made = make_jobs();
  report.plan_seconds = clock.seconds() - report.begin_seconds;
  return made;
}

/// Collective.
Result<> Session::State::renew_memory() {
  if (!session::memory_changed(agreed, received)) return {};
  for (const auto& job : jobs) {
    if (auto renewed = job->renew_memory(); !renewed) {
      finished = renewed.error();
      return renewed;
    }
  }
  for (std::size_t r = 0; r < agreed.size(); ++r) agreed[r].memory = received[r].memory;
  return {};
}

Result<> Session::State::transfer_and_check(SessionReport& report,
                                            const std::function<void()>& sources_free) {
  const int copy = next_copy();
  pause = {};
  if (options.buffering == Buffering::in_place) {
    if (has_target()) published->set({TargetState::torn, published->target_version().version, 0});
    is_recorded = false;
  }
  RESHARD_TRY(enter(SessionPhase::transfer));
  const bool verifies = options.verify == VerifyMode::always;
  Result<> moved;
  {
    const TracedPhase traced(tracing(), "transfer");
    for (session::JobTarget& target : job_targets) target.renew_stream();
    for (const auto& job : jobs)
      if (moved) moved = job->run(copy, verifies, report);
  }
  if (!moved) {
    // A verdict is identical on every rank, so all can go on with another refit.
    if (!is_verdict(control, moved.error())) finished = moved.error();
    return moved;
  }
  if (!verifies && sources_free) sources_free();
  RESHARD_TRY(enter(SessionPhase::check));
  if (verifies) {
    const Stopwatch clock;
    const TracedPhase traced(tracing(), "check");
    Result<> checked;
    for (const auto& job : jobs)
      if (checked) checked = job->check(copy);
    report.check_seconds += clock.seconds();
    // What the jobs have recorded may be of the copy that failed.
    is_recorded = is_recorded && checked;
    // Any other error has aborted the group.
    if (!checked && !is_verdict(control, checked.error())) finished = checked.error();
    RESHARD_TRY(std::move(checked));
    if (sources_free) sources_free();
  }
  return {};
}

Result<> Session::State::commit(std::int64_t version, SessionReport& report) {
  const Stopwatch clock;
  const TracedPhase traced(tracing(), "commit");
  const int copy = next_copy();
  RESHARD_TRY(enter(SessionPhase::commit));
  // A rank that failed before has aborted the group, so that no rank passes.
  if (auto prepared = control.barrier(deadline()); !prepared)
    return finish(std::move(prepared).error());
  if (has_target()) published->set({TargetState::whole, version, copy});
  is_recorded = options.verify == VerifyMode::always;
  if (options.buffering == Buffering::doubled) pause = {};
  RESHARD_TRY(enter(SessionPhase::committed));
  if (has_target()) report.pause_seconds = pause.seconds();
  if (auto all = control.barrier(deadline()); !all) return finish(std::move(all).error());
  report.commit_seconds = clock.seconds();
  return {};
}

Result<> Session::State::finish_trace() {
  if (!tracer) return {};
  if (auto traced = tracer->finish(transport, control, deadline()); !traced)
    return finish(std::move(traced).error().in("the trace"));
  return {};
}

Error Session::State::busy(std::string_view call) {
  return {Code::invalid_argument,
          fmt::format("{}: a refit of this session is in progress; wait for its end", call)};
}

Result<> Session::State::verify() {
  if (in_progress()) return tl::unexpected(busy("verify()"));
  if (finished)
    return fail(Code::invalid_argument, "this session's group was aborted: " + finished->message);
  const int copy = has_target() ? published->target_version().buffer : 0;
  watch_memory();
  const auto awake = agree_on_reason(job_trouble(), control, deadline());
  if (!awake) return finish(awake.error());
  if (!awake->empty()) return fail(Code::invalid_argument, *awake);
  Result<> done;
  for (session::JobTarget& target : job_targets) target.renew_stream();
  for (const auto& job : jobs) {
    if (done) done = job->renew_memory();
    if (done) done = job->check_again(copy, is_recorded);
  }
  if (!done && !is_verdict(control, done.error())) finished = done.error();
  return done;
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::prepare(Transport& transport, ControlPlane& control, SessionSide source,
                                 SessionSide target, SessionOptions options) {
  return prepare(transport, control, std::move(source), std::vector{std::move(target)},
                 std::move(options));
}

Result<Session> Session::prepare(Transport& transport, ControlPlane& control, SessionSide source,
                                 std::vector<SessionSide> targets, SessionOptions options) {
  auto state = std::make_unique<State>(transport, control, std::move(source), std::move(targets),
                                       std::move(options));
  if (auto done = state->prepare(); !done)
    return tl::unexpected(std::move(done).error().in("session"));
  return Session(std::move(state));
}

Result<SessionReport> Session::State::refit(std::int64_t version, SessionReport report,
                                            const std::function<void()>& sources_free) {
  const Stopwatch clock;
  auto done = begin(version, report);
  if (done) done = transfer_and_check(report, sources_free);
  if (done) done = commit(version, report);
  if (!done && tracer) tracer->finish_alone();
  report.version = version;
  report.seconds = clock.seconds();
  if (done) done = finish_trace();
  if (!done) return tl::unexpected(explained(std::move(done).error(), version));
  return report;
}

Result<SessionReport> Session::refit(std::int64_t version) {
  if (state_->in_progress()) return tl::unexpected(state_->busy("refit()"));
  SessionReport report;
  state_->take_snapshot(report);
  return state_->refit(version, report, nullptr);
}

Result<PendingRefit> Session::refit_async(std::int64_t version, std::function<void()> on_end) {
  State& s = *state_;
  if (s.in_progress()) return tl::unexpected(s.busy("refit_async()"));
  SessionReport report;
  s.take_snapshot(report);
  auto started = PendingRefit::start(
      [&s, version, report](const PendingRefit::FreeSources& free) {
        return s.refit(version, report, free);
      },
      s.snapshot != nullptr, std::move(on_end));
  if (!started) return s.finish(std::move(started).error());
  s.pending = *started;
  return started;
}

void Session::update(SessionSide source, SessionSide target) {
  update(std::move(source), std::vector{std::move(target)});
}

void Session::update(SessionSide source, std::vector<SessionSide> targets) {
  for (SessionSide& target : targets) target.published = state_->published;
  state_->take(std::move(source), std::move(targets));
}

Result<> Session::verify() { return state_->verify(); }
TargetVersion Session::target_version() const { return state_->target_version(); }
const std::vector<PeerVolume>& Session::peers() const { return state_->peers; }

std::string_view Session::path() const {
  if (state_->jobs.empty()) return "none";
  const std::string_view first = state_->jobs.front()->path();
  const auto same = [&](const auto& job) { return job->path() == first; };
  return std::ranges::all_of(state_->jobs, same) ? first : "mixed";
}

const std::string& Session::reason() const {
  static const std::string none;
  for (const auto& job : state_->jobs)
    if (!job->reason().empty()) return job->reason();
  return none;
}

std::uint64_t Session::digest() const { return state_->digest; }

Index Session::staging_bytes() const {
  Index sum = 0;
  for (const auto& job : state_->jobs) sum += job->staging_bytes();
  return sum;
}

const WhySlow* Session::why_slow() const {
  return state_->tracer ? state_->tracer->why_slow() : nullptr;
}
const ConversionCounts& Session::conversions() const { return state_->counts; }
const RelaySummary* Session::relays() const {
  for (const auto& job : state_->jobs)
    if (const RelaySummary* relays = job->relays()) return relays;
  return nullptr;
}

}  // namespace reshard
