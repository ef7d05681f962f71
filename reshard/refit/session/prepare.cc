// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/hash.h"
#include "reshard/refit/session/state.h"

namespace reshard {
namespace {

std::uint64_t digest_of(const SessionOptions& options) {
  Digest digest;
  digest.add(static_cast<int>(options.buffering))
      .add(static_cast<int>(options.verify))
      .add(static_cast<int>(options.convert))
      .add(static_cast<int>(options.refit.path))
      .add(options.replan ? 1 : 0)
      .add(options.ignore.size());
  for (const std::string& name : options.ignore) digest.add(name);
  return digest.value();
}

std::uint64_t digest_of(const SessionSide& side) {
  Digest digest;
  if (side.values() == nullptr || side.stored() == nullptr) return 0;
  digest.add(side.values()->digest()).add(side.stored()->digest());
  if (side.quantised == nullptr) return digest.value();
  const QuantChoice& choice = side.quantised->choice;
  const QuantFormat& format = choice.format;
  digest.add(static_cast<int>(format.data))
      .add(static_cast<int>(format.scale))
      .add(format.block_rows)
      .add(format.block_cols)
      .add(static_cast<int>(format.rule))
      .add(static_cast<int>(format.order))
      .add(format.zero_block)
      .add(format.tensor_factor ? 1 : 0)
      .add(format.factor_divides ? 1 : 0)
      .add(static_cast<int>(choice.grid));
  for (const std::string& name : choice.tensors)
    digest.add(name).add(choice.input_first.contains(name) ? 1 : 0);
  return digest.value();
}

/// What is wrong with one side of this rank; "" where nothing is.
std::string trouble_of(const char* name, const SessionSide& side, int group_size) {
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
      published(target.published != nullptr ? target.published : &own_word) {}

std::string Session::State::trouble() const {
  for (const auto& [name, side] : {std::pair("source", &source), std::pair("target", &target)})
    if (auto wrong = trouble_of(name, *side, control.size()); !wrong.empty()) return wrong;
  if (source.values()->model().digest() != target.values()->model().digest())
    return fmt::format(
        "source ({}) and target ({}) are layouts of two models; both must have the "
        "same canonical tensors",
        source.values()->name(), target.values()->name());
  if (options.buffering == Buffering::doubled && target.buffers != nullptr &&
      target.back == nullptr)
    return "two copies are asked for, but `back`, the second one, is not given";
  return "";
}

BeginRecord Session::State::record(BeginRecord::Kind kind, std::int64_t version) const {
  BeginRecord out{.kind = kind, .version = version};
  const TargetVersion now = target_version();
  out.held = now.state == TargetState::whole ? now.version : -1;
  out.source = digest_of(source);
  out.target = digest_of(target);
  out.staging = static_cast<std::uint64_t>(std::max<Index>(0, options.refit.staging_bytes));
  out.options = agreed.empty() ? digest_of(options) : agreed[me().index()].options;
  const bool same_layouts = !agreed.empty() && out.source == agreed[me().index()].source &&
                            out.target == agreed[me().index()].target;
  if (same_layouts) {
    out.addresses = memory_digest(source_addresses, target_addresses);
    if (out.addresses == agreed[me().index()].addresses) return out;
    out.change = source_addresses.change(source);
    if (out.change.empty()) out.change = target_addresses.change(target);
  }
  // What changed is looked at as closely as what is new.
  out.trouble = trouble();
  if (!same_layouts && out.trouble.empty())
    out.addresses =
        memory_digest(Addresses("source", source, me()), Addresses("target", target, me()));
  return out;
}

std::uint64_t Session::State::memory_digest(const Addresses& from, const Addresses& to) const {
  return mix64(from.digest(source)) + to.digest(target);
}

Result<> Session::State::prepare() {
  if (auto done = exchange_records(record(BeginRecord::Kind::prepare, -1), control, deadline(),
                                   told, words);
      !done)
    return finish(std::move(done).error());
  RESHARD_TRY(same_call(told));
  RESHARD_TRY(same_job(told));
  return make_job();
}

Result<> Session::State::make_job() {
  job.reset();
  is_recorded = false;
  job =
      RESHARD_TRY(Job::prepare({transport, control, source, target, options, least_staging(told)}));
  agreed = told;
  source_addresses = Addresses("source", source, me());
  target_addresses = Addresses("target", target, me());
  Digest all;
  for (const BeginRecord& r : agreed)
    all.add(r.source).add(r.target).add(r.options).add(r.addresses);
  digest = all.value();
  return {};
}

Result<Session> Session::prepare(Transport& transport, ControlPlane& control, SessionSide source,
                                 SessionSide target, SessionOptions options) {
  auto state = std::make_unique<State>(transport, control, std::move(source), std::move(target),
                                       std::move(options));
  if (auto done = state->prepare(); !done)
    return tl::unexpected(std::move(done).error().in("session"));
  return Session(std::move(state));
}

void Session::update(SessionSide source, SessionSide target) {
  target.published = state_->published;
  state_->source = std::move(source);
  state_->target = std::move(target);
}

}  // namespace reshard
