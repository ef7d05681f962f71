// SPDX-License-Identifier: Apache-2.0
// What a session prepares, and what every rank tells the others before a refit.
#include "reshard/refit/session_state.h"

#include <fmt/format.h>

#include <algorithm>

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
      options(std::move(how)),
      published(to.published != nullptr ? to.published : &own_published) {
  take(std::move(from), std::move(to));
  if (!options.trace.path.empty()) tracer.emplace(options.trace, me(), control.size());
}

Session::State::~State() {
  if (pending) (void)pending->wait(Deadline::never());
}

void Session::State::take(SessionSide from, SessionSide to) {
  is_watched = false;
  given_source = from;
  source = std::move(from);
  target = std::move(to);
  if (!options.snapshot || source.buffers == nullptr) return;
  if (snapshot == nullptr || !snapshot->fits(*source.buffers)) {
    // Peers may use the memory of the plan until there is another one.
    if (job != nullptr && replaced_snapshot == nullptr) replaced_snapshot = std::move(snapshot);
    auto made = SourceSnapshot::make(*source.buffers, me(), options.refit.threads);
    if (made) {
      snapshot = *std::move(made);
    } else {
      snapshot = nullptr;
      given_source.trouble = source.trouble = "no snapshot: " + made.error().message;
      return;
    }
  }
  given_memory = GpuMemoryWatch::of("source", given_source, me());
  source.buffers = &snapshot->buffers();
}

void Session::State::take_snapshot(SessionReport& report) {
  if (snapshot == nullptr) return;
  const Stopwatch clock;
  source.trouble = given_source.trouble;
  if (source.trouble.empty()) source.trouble = given_memory.look().trouble;
  if (source.trouble.empty())
    if (auto done = snapshot->take(*given_source.buffers); !done)
      source.trouble = "the snapshot: " + done.error().message;
  report.snapshot_seconds = clock.seconds();
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
  if (options.host.size() > kMaxHostName)
    return fmt::format("the name of the host has {} bytes, at most {} are allowed",
                       options.host.size(), kMaxHostName);
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
  replaced_snapshot.reset();
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

}  // namespace reshard
