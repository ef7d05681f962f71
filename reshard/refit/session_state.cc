// SPDX-License-Identifier: Apache-2.0
// What a session prepares, and what every rank tells the others before a refit.
#include "reshard/refit/session_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reshard/base/hash.h"
#include "reshard/base/stopwatch.h"
#include "reshard/exec/agreement.h"
#include "reshard/exec/routes/relay_places.h"

namespace reshard {

using conversion::Job;
using session::Addresses;
using session::BeginRecord;
using session::GpuMemoryWatch;
using session::SourceSnapshot;

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

/// The digest of the sides so far and one more.
std::uint64_t joined(std::uint64_t sides, std::uint64_t more) { return mix64(sides) + more; }

/// The least staging of a job, as RankRefitOptions::staging_bytes says. Bytes.
constexpr Index kLeastStaging = Index{32} << 10;

/// The error message about one side on this rank; "" if there is none.
std::string trouble_of(const std::string& name, const SessionSide& side, int group_size) {
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

Session::State::State(Transport& data, ControlPlane& agreement, SessionSide from,
                      std::vector<SessionSide> to, SessionOptions how)
    : transport(data), control(agreement), options(std::move(how)), published(&own_published) {
  for (const SessionSide& target : to)
    if (target.published != nullptr && published == &own_published) published = target.published;
  take(std::move(from), std::move(to));
  if (!options.trace.path.empty()) tracer.emplace(options.trace, me(), control.size());
}

Session::State::~State() {
  if (pending) (void)pending->wait(Deadline::never());
}

void Session::State::take(SessionSide from, std::vector<SessionSide> to) {
  is_watched = false;
  held.resize(1 + to.size());
  held.front().name = "source";
  take_source(std::move(from));
  more_targets.clear();
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (i > 0) more_targets.push_back({to[i].buffers, to[i].back});
    held[i + 1].name = to.size() == 1 ? "target" : fmt::format("target {}", i + 1);
    held[i + 1].side = std::move(to[i]);
  }
}

void Session::State::take_source(SessionSide from) {
  given_source = from;
  source() = std::move(from);
  if (!options.snapshot || source().buffers == nullptr) return;
  if (snapshot == nullptr || !snapshot->fits(*source().buffers)) {
    // Peers may use the memory of the plan until there is another one.
    if (!jobs.empty() && replaced_snapshot == nullptr) replaced_snapshot = std::move(snapshot);
    auto made = SourceSnapshot::make(*source().buffers, me(), options.refit.threads);
    if (made) {
      snapshot = *std::move(made);
    } else {
      snapshot = nullptr;
      given_source.trouble = source().trouble = "no snapshot: " + made.error().message;
      return;
    }
  }
  given_memory = GpuMemoryWatch::of("source", given_source, me());
  source().buffers = &snapshot->buffers();
}

void Session::State::take_snapshot(SessionReport& report) {
  if (snapshot == nullptr) return;
  const Stopwatch clock;
  source().trouble = given_source.trouble;
  if (source().trouble.empty()) source().trouble = given_memory.look().trouble;
  if (source().trouble.empty())
    if (auto done = snapshot->take(*given_source.buffers); !done)
      source().trouble = "the snapshot: " + done.error().message;
  report.snapshot_seconds = clock.seconds();
}

std::uint64_t Session::State::digest_of_targets() const {
  if (targets().size() == 1) return digest_of(targets().front().side);
  Digest all;
  for (const Held& target : targets()) all.add(digest_of(target.side));
  return all.value();
}

std::string Session::State::trouble() const {
  if (targets().empty()) return "a session needs a target";
  for (const Held& one : held)
    if (auto wrong = trouble_of(one.name, one.side, control.size()); !wrong.empty()) return wrong;
  for (const Held& target : targets()) {
    const SessionSide& to = target.side;
    if (source().values()->model().digest() != to.values()->model().digest())
      return fmt::format(
          "source ({}) and {} ({}) are layouts of different models; both must have the "
          "same canonical tensors",
          source().values()->name(), target.name, to.values()->name());
    if (options.buffering == Buffering::doubled && to.buffers != nullptr && to.back == nullptr)
      return fmt::format("doubled buffering needs `back`, the second copy of the {}", target.name);
    if (to.published != nullptr && to.published != published)
      return "the targets of a rank have one version; pass the same PublishedVersion for all";
  }
  if (options.host.size() > kMaxHostName)
    return fmt::format("the name of the host has {} bytes, at most {} are allowed",
                       options.host.size(), kMaxHostName);
  return tracer ? tracer->trouble() : "";
}

BeginRecord Session::State::record(BeginRecord::Kind kind, std::int64_t version) {
  BeginRecord out{.kind = kind, .version = version};
  const TargetVersion now = target_version();
  out.target_version = now.state == TargetState::whole ? now.version : -1;
  out.source = digest_of(source());
  out.target = digest_of_targets();
  out.staging = static_cast<std::uint64_t>(std::max<Index>(0, options.refit.staging_bytes));
  out.options = agreed.empty() ? session::options_word(options) : agreed[me().index()].options;
  out.trouble = memory_trouble(out.memory);
  const bool same_layouts = !agreed.empty() && out.source == agreed[me().index()].source &&
                            out.target == agreed[me().index()].target;
  if (same_layouts) {
    out.addresses = memory_digest();
    const bool usable =
        std::ranges::all_of(held, [](const Held& one) { return one.side.trouble.empty(); });
    if (out.addresses == agreed[me().index()].addresses && usable) return out;
    out.change = address_change();
  }
  // A change is checked as thoroughly as new sides are.
  if (auto wrong = trouble(); !wrong.empty()) out.trouble = std::move(wrong);
  if (!same_layouts && out.trouble.empty()) {
    out.addresses = 0;
    for (const Held& one : held)
      out.addresses = joined(out.addresses, Addresses(one.name, one.side, me()).digest(one.side));
  }
  return out;
}

void Session::State::watch_memory() {
  is_watched = is_watched && memory_digest() == agreed[me().index()].addresses;
  if (is_watched) return;
  for (Held& one : held) one.memory = GpuMemoryWatch::of(one.name, one.side, me());
  is_watched = true;
}

std::string Session::State::memory_trouble(std::uint64_t& id) {
  for (const Held& one : held) {
    const GpuMemoryWatch::State now = one.memory.look();
    if (&one == &held.front()) id = now.id;
    if (!now.trouble.empty()) return now.trouble;
  }
  if (std::string trouble = published->trouble(); !trouble.empty()) return trouble;
  const SessionSide first = targets().empty() ? SessionSide() : targets().front().side;
  return check_memory.trouble({source().buffers, first.buffers, first.back, me(), more_targets});
}

std::string Session::State::job_trouble() {
  if (jobs.empty()) return "nothing is planned, because the last refit() could not plan anew";
  for (const Held& one : held)
    if (!one.side.trouble.empty()) return one.side.trouble;
  std::uint64_t id = 0;
  if (std::string trouble = memory_trouble(id); !trouble.empty()) return trouble;
  const BeginRecord& then = agreed[me().index()];
  if (digest_of(source()) != then.source || digest_of_targets() != then.target)
    return "a layout changed since the last refit()";
  return address_change();
}

std::uint64_t Session::State::memory_digest() const {
  std::uint64_t all = 0;
  for (const Held& one : held) all = joined(all, one.planned.digest(one.side));
  return all;
}

std::string Session::State::address_change() const {
  for (const Held& one : held)
    if (std::string change = one.planned.change(one.side); !change.empty()) return change;
  return "";
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
  return make_jobs();
}

Result<> Session::State::make_jobs() {
  jobs.clear();
  is_recorded = false;
  std::vector<SessionSide> sides;
  for (const Held& target : targets()) sides.push_back(target.side);
  auto found = session::job_targets(sides, me());
  if (!found) return finish(std::move(found).error());
  job_targets = *std::move(found);
  const Index all_staging = session::least_staging(received), parts = std::ssize(job_targets);
  const Index staging = all_staging / parts;
  if (parts > 1 && staging < kLeastStaging)
    return fail(Code::invalid_argument,
                fmt::format("staging of {} bytes is too small for {} targets that are moved one "
                            "after another; give every rank {} or more",
                            all_staging, parts, parts * kLeastStaging));
  std::vector<std::unique_ptr<Job>> made;
  for (const session::JobTarget& target : job_targets)
    made.push_back(RESHARD_TRY(Job::prepare({transport, control, source(), target.side(), options,
                                             staging, tracer ? &tracer->recorder() : nullptr})));
  jobs = std::move(made);
  sum_up();
  agreed = received;
  for (Held& one : held) one.planned = Addresses(one.name, one.side, me());
  replaced_snapshot.reset();
  Digest all;
  for (const BeginRecord& r : agreed)
    all.add(r.source).add(r.target).add(r.options).add(r.addresses);
  digest = all.value();
  return {};
}

void Session::State::sum_up() {
  std::map<Rank, PeerVolume> volumes;
  counts = {};
  for (const auto& job : jobs) {
    for (const PeerVolume& peer : job->peers()) {
      PeerVolume& sum = volumes[peer.peer];
      sum.peer = peer.peer;
      sum.sent += peer.sent;
      sum.received += peer.received;
    }
    counts += job->conversions();
  }
  peers.clear();
  for (const auto& [rank, sum] : volumes) peers.push_back(sum);
}

bool Session::State::has_target() const {
  return std::ranges::any_of(targets(),
                             [](const Held& target) { return target.side.buffers != nullptr; });
}

int Session::State::next_copy() const {
  const bool doubled = options.buffering == Buffering::doubled;
  return doubled && has_target() ? 1 - published->target_version().buffer : 0;
}

TargetVersion Session::State::target_version() const { return published->target_version(); }

Deadline Session::State::deadline() const {
  return Deadline::after(std::chrono::duration<double>(options.refit.seconds));
}

}  // namespace reshard
