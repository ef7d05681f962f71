// SPDX-License-Identifier: Apache-2.0
// One refit: begin (one all_gather of versions and digests), transfer (the job), check, and a
// commit in two steps. After the first barrier of the commit every rank knows that all ranks'
// checks succeeded, and publishes its version as whole; after the second it knows that all ranks
// have.
#include "reshard/refit/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "reshard/base/hash.h"
#include "reshard/base/stopwatch.h"
#include "reshard/exec/agreement.h"
#include "reshard/refit/conversion/job.h"
#include "reshard/refit/session/addresses.h"
#include "reshard/refit/session/begin.h"
#include "reshard/refit/session/gpu_memory_watch.h"
#include "reshard/trace/refit_tracer.h"

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
using conversion::Job;
using session::Addresses;
using session::BeginRecord;
using session::BeginRecords;
using session::BeginWords;
using session::GpuMemoryWatch;

struct Session::State {
  State(Transport& data, ControlPlane& agreement, SessionSide from, SessionSide to,
        SessionOptions how);

  /// Collective. Agrees on everything and makes the job. Errors: as Session::prepare().
  Result<> prepare();
  Result<> verify();

  Rank me() const { return transport.rank(); }
  bool has_target() const;
  /// The copy of the target that the next refit writes.
  int next_copy() const;
  TargetVersion target_version() const;
  Deadline deadline() const;

  BeginRecord record(BeginRecord::Kind kind, std::int64_t version);
  std::string trouble() const;
  std::uint64_t memory_digest(const Addresses& from, const Addresses& to) const;
  Result<> make_job();
  /// Finds the memory behind the addresses, if these changed.
  void watch_memory();
  /// Why a refit cannot use that memory, or may not; "" if it can. `id` becomes that of the source.
  std::string memory_trouble(std::uint64_t& id);
  /// Why what is prepared cannot be used with the sides as they are; "" if it can.
  std::string job_trouble();

  // The phases of a refit. Collective.
  Result<> begin(std::int64_t version, SessionReport& report);
  Result<> renew_memory();
  Result<> transfer_and_check(SessionReport& report);
  Result<> commit(std::int64_t version, SessionReport& report);
  Result<> enter(SessionPhase phase);
  /// Aborts the group; the session cannot be used afterwards.
  tl::unexpected<Error> finish(Error error);
  Error explained(Error error, std::int64_t version) const;
  RefitTracer* tracing() { return tracer ? &*tracer : nullptr; }
  /// Collective, after a refit. Gathers and writes its trace, if it is traced.
  Result<> finish_trace();

  Transport& transport;
  ControlPlane& control;
  SessionSide source, target;
  const SessionOptions options;
  PublishedVersion own_published;
  PublishedVersion* const published;
  Addresses source_addresses, target_addresses;
  GpuMemoryWatch source_memory, target_memory;
  MemoryCheck check_memory;
  bool is_watched = false;            ///< the two above are of the sides as they are.
  BeginRecords agreed;                ///< that the job was made from.
  BeginRecords received;              ///< of the latest call.
  std::vector<BeginWords> exchange;   ///< reused by exchange_records().
  std::optional<RefitTracer> tracer;  ///< that the job's programs record to.
  std::unique_ptr<Job> job;
  std::uint64_t digest = 0;
  SessionPhase phase = SessionPhase::begin;
  bool is_recorded = false;       ///< the job recorded what the targets hold, after verifying it.
  std::optional<Error> finished;  ///< why this session can no longer be used.
};

namespace {

std::uint64_t digest_of(const SessionSide& side) {
  Digest digest;
  if (side.values() == nullptr || side.stored() == nullptr) return 0;
  digest.add(side.values()->digest()).add(side.stored()->digest());
  if (side.quantised == nullptr) return digest.value();
  const QuantChoice& choice = side.quantised->choice;
  const auto add = [&](const QuantFormat& format) {
    digest.add(static_cast<int>(format.data))
        .add(static_cast<int>(format.scale))
        .add(format.block_rows)
        .add(format.block_cols)
        .add(static_cast<int>(format.rule))
        .add(static_cast<int>(format.order))
        .add(format.zero_block)
        .add(format.tensor_factor ? 1 : 0)
        .add(format.factor_divides ? 1 : 0);
  };
  add(choice.format);
  for (const auto& [tensor, format] : choice.others) {
    digest.add(tensor);
    add(format);
  }
  digest.add(static_cast<int>(choice.grid));
  for (const std::string& name : choice.tensors)
    digest.add(name).add(choice.input_first.contains(name) ? 1 : 0);
  return digest.value();
}

/// The error message about one side on this rank; "" if there is none.
std::string trouble_of(const char* name, const SessionSide& side, int group_size) {
  if (!side.trouble.empty()) return side.trouble;
  if ((side.layout == nullptr) == (side.quantised == nullptr))
    return fmt::format("the {} needs one of `layout` and `quantised`", name);
  if (side.values() == nullptr || side.stored() == nullptr)
    return fmt::format("the quantised layout of the {} is not complete", name);
  for (const RankBuffers* buffers : {side.buffers, side.back})
    if (buffers != nullptr && &buffers->layout() != side.stored().get())
      return fmt::format("the {}'s buffers are of another layout object ({}) than the {} ({})",
                         name, buffers->layout().name(), name, side.stored()->name());
  const auto ranks = side.stored()->ranks().members();
  if (!ranks.empty() && ranks.back().value() >= group_size)
    return fmt::format("the {} needs rank {} but the group has {} ranks; start {} or more", name,
                       ranks.back().value(), group_size, ranks.back().value() + 1);
  return "";
}

}  // namespace

Session::State::State(Transport& data, ControlPlane& agreement, SessionSide from, SessionSide to,
                      SessionOptions how)
    : transport(data),
      control(agreement),
      source(std::move(from)),
      target(std::move(to)),
      options(std::move(how)),
      published(target.published != nullptr ? target.published : &own_published) {
  if (!options.trace.path.empty()) tracer.emplace(options.trace, me(), control.size());
}

std::string Session::State::trouble() const {
  for (const auto& [name, side] : {std::pair("source", &source), std::pair("target", &target)})
    if (auto wrong = trouble_of(name, *side, control.size()); !wrong.empty()) return wrong;
  if (source.values()->model().digest() != target.values()->model().digest())
    return fmt::format(
        "source ({}) and target ({}) are layouts of different models; both must have the "
        "same canonical tensors",
        source.values()->name(), target.values()->name());
  if (options.buffering == Buffering::doubled && target.buffers != nullptr &&
      target.back == nullptr)
    return "doubled buffering needs `back`, the second copy of the target";
  return tracer ? tracer->trouble() : "";
}

BeginRecord Session::State::record(BeginRecord::Kind kind, std::int64_t version) {
  BeginRecord out{.kind = kind, .version = version};
  const TargetVersion now = target_version();
  out.target_version = now.state == TargetState::whole ? now.version : -1;
  out.source = digest_of(source);
  out.target = digest_of(target);
  out.staging = static_cast<std::uint64_t>(std::max<Index>(0, options.refit.staging_bytes));
  out.options = agreed.empty() ? session::options_word(options) : agreed[me().index()].options;
  out.trouble = memory_trouble(out.memory);
  const bool same_layouts = !agreed.empty() && out.source == agreed[me().index()].source &&
                            out.target == agreed[me().index()].target;
  if (same_layouts) {
    out.addresses = memory_digest(source_addresses, target_addresses);
    const bool usable = source.trouble.empty() && target.trouble.empty();
    if (out.addresses == agreed[me().index()].addresses && usable) return out;
    out.change = source_addresses.change(source);
    if (out.change.empty()) out.change = target_addresses.change(target);
  }
  // A change is checked as thoroughly as new sides are.
  if (auto wrong = trouble(); !wrong.empty()) out.trouble = std::move(wrong);
  if (!same_layouts && out.trouble.empty())
    out.addresses =
        memory_digest(Addresses("source", source, me()), Addresses("target", target, me()));
  return out;
}

void Session::State::watch_memory() {
  is_watched = is_watched &&
               memory_digest(source_addresses, target_addresses) == agreed[me().index()].addresses;
  if (is_watched) return;
  source_memory = GpuMemoryWatch::of("source", source, me());
  target_memory = GpuMemoryWatch::of("target", target, me());
  is_watched = true;
}

std::string Session::State::memory_trouble(std::uint64_t& id) {
  const GpuMemoryWatch::State from = source_memory.look(), to = target_memory.look();
  id = from.id;
  for (const std::string& trouble : {from.trouble, to.trouble})
    if (!trouble.empty()) return trouble;
  if (std::string trouble = published->trouble(); !trouble.empty()) return trouble;
  return check_memory.trouble({source.buffers, target.buffers, target.back, me()});
}

std::string Session::State::job_trouble() {
  if (job == nullptr) return "nothing is planned, because the last refit() could not plan anew";
  for (const SessionSide* side : {&source, &target})
    if (!side->trouble.empty()) return side->trouble;
  std::uint64_t id = 0;
  if (std::string trouble = memory_trouble(id); !trouble.empty()) return trouble;
  const BeginRecord& then = agreed[me().index()];
  if (digest_of(source) != then.source || digest_of(target) != then.target)
    return "a layout changed since the last refit()";
  std::string change = source_addresses.change(source);
  return change.empty() ? target_addresses.change(target) : change;
}

std::uint64_t Session::State::memory_digest(const Addresses& from, const Addresses& to) const {
  return mix64(from.digest(source)) + to.digest(target);
}

Result<> Session::State::prepare() {
  watch_memory();
  if (auto done = session::exchange_records(record(BeginRecord::Kind::prepare, -1), control,
                                            deadline(), received, exchange);
      !done)
    return finish(std::move(done).error());
  RESHARD_TRY(session::same_call(received));
  RESHARD_TRY(session::same_job(received));
  if (tracer)
    if (auto aligned = tracer->align_clocks(control, deadline()); !aligned)
      return finish(std::move(aligned).error());
  return make_job();
}

Result<> Session::State::make_job() {
  job.reset();
  is_recorded = false;
  job = RESHARD_TRY(
      Job::prepare({transport, control, source, target, options, session::least_staging(received),
                    tracer ? &tracer->recorder() : nullptr}));
  agreed = received;
  source_addresses = Addresses("source", source, me());
  target_addresses = Addresses("target", target, me());
  Digest all;
  for (const BeginRecord& r : agreed)
    all.add(r.source).add(r.target).add(r.options).add(r.addresses);
  digest = all.value();
  return {};
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
  if (change.empty() && job) return renew_memory();
  if (!options.replan)
    return fail(Code::invalid_argument,
                change + "; prepare a new session, or set the option `replan`");
  RESHARD_TRY(session::same_job(received));
  const TracedPhase planning(tracing(), "plan");
  auto made = make_job();
  report.plan_seconds = clock.seconds() - report.begin_seconds;
  return made;
}

/// Collective.
Result<> Session::State::renew_memory() {
  if (!session::memory_changed(agreed, received)) return {};
  if (auto renewed = job->renew_memory(); !renewed) {
    finished = renewed.error();
    return renewed;
  }
  for (std::size_t r = 0; r < agreed.size(); ++r) agreed[r].memory = received[r].memory;
  return {};
}

Result<> Session::State::transfer_and_check(SessionReport& report) {
  const int copy = next_copy();
  if (options.buffering == Buffering::in_place) {
    if (has_target()) published->set({TargetState::torn, published->target_version().version, 0});
    is_recorded = false;
  }
  RESHARD_TRY(enter(SessionPhase::transfer));
  const bool verifies = options.verify == VerifyMode::always;
  Result<> moved;
  {
    const TracedPhase traced(tracing(), "transfer");
    moved = job->run(copy, verifies, report);
  }
  if (!moved) {
    // A verdict is identical on every rank, so all can go on with another refit.
    if (!is_verdict(control, moved.error())) finished = moved.error();
    return moved;
  }
  RESHARD_TRY(enter(SessionPhase::check));
  if (verifies) {
    const Stopwatch clock;
    const TracedPhase traced(tracing(), "check");
    auto checked = job->check(copy);
    report.check_seconds += clock.seconds();
    // What the job has recorded may be of the copy that failed.
    is_recorded = is_recorded && checked;
    // Any other error has aborted the group.
    if (!checked && !is_verdict(control, checked.error())) finished = checked.error();
    RESHARD_TRY(std::move(checked));
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
  RESHARD_TRY(enter(SessionPhase::committed));
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

Result<> Session::State::verify() {
  if (finished)
    return fail(Code::invalid_argument, "this session's group was aborted: " + finished->message);
  const int copy = has_target() ? published->target_version().buffer : 0;
  watch_memory();
  const auto awake = agree_on_reason(job_trouble(), control, deadline());
  if (!awake) return finish(awake.error());
  if (!awake->empty()) return fail(Code::invalid_argument, *awake);
  auto done = job->renew_memory();
  if (done) done = job->check_again(copy, is_recorded);
  if (!done && !is_verdict(control, done.error())) finished = done.error();
  return done;
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::prepare(Transport& transport, ControlPlane& control, SessionSide source,
                                 SessionSide target, SessionOptions options) {
  auto state = std::make_unique<State>(transport, control, std::move(source), std::move(target),
                                       std::move(options));
  if (auto done = state->prepare(); !done)
    return tl::unexpected(std::move(done).error().in("session"));
  return Session(std::move(state));
}

Result<SessionReport> Session::refit(std::int64_t version) {
  const Stopwatch clock;
  State& s = *state_;
  SessionReport report;
  auto done = s.begin(version, report);
  if (done) done = s.transfer_and_check(report);
  if (done) done = s.commit(version, report);
  if (!done && s.tracer) s.tracer->finish_alone();
  report.version = version;
  report.seconds = clock.seconds();
  if (done) done = s.finish_trace();
  if (!done) return tl::unexpected(s.explained(std::move(done).error(), version));
  return report;
}

void Session::update(SessionSide source, SessionSide target) {
  target.published = state_->published;
  state_->is_watched = false;
  state_->source = std::move(source);
  state_->target = std::move(target);
}

Result<> Session::verify() { return state_->verify(); }
TargetVersion Session::target_version() const { return state_->target_version(); }
const std::vector<PeerVolume>& Session::peers() const {
  static const std::vector<PeerVolume> none;
  return state_->job ? state_->job->peers() : none;
}
std::string_view Session::path() const { return state_->job ? state_->job->path() : "none"; }
const std::string& Session::reason() const {
  static const std::string none;
  return state_->job ? state_->job->reason() : none;
}
std::uint64_t Session::digest() const { return state_->digest; }
Index Session::staging_bytes() const { return state_->job ? state_->job->staging_bytes() : 0; }
const WhySlow* Session::why_slow() const {
  return state_->tracer ? state_->tracer->why_slow() : nullptr;
}
const ConversionCounts& Session::conversions() const {
  static const ConversionCounts none;
  return state_->job ? state_->job->conversions() : none;
}

}  // namespace reshard
