// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_ways.h"

#include <algorithm>
#include <cstring>

#include "reshard/model/families.h"
#include "reshard/model/families/rules.h"

namespace reshard::bench {
namespace {

constexpr Index kMaxBlock = Index{256} << 20;

/// Every tensor whole on each of `count` ranks from `first` on.
Result<std::shared_ptr<const ModelLayout>> whole_layout(
    const std::shared_ptr<const ModelSpec>& model, Index first, Index count) {
  Rule rule;
  rule.match = "*";
  LayoutSpec spec;
  spec.family = "rules";
  spec.file = "whole";
  spec.keys["offset"] = std::to_string(first);
  return std::make_shared<const ModelLayout>(RESHARD_TRY(
      rules_layout(spec, FamilyInput{model, nullptr}, RuleSet{{{"copy", count}}, {rule}})));
}

Result<std::unique_ptr<RankBuffers>> buffers_of(const std::shared_ptr<const ModelLayout>& layout,
                                                Rank me) {
  if (!layout->ranks().contains(me)) return nullptr;
  return std::make_unique<RankBuffers>(RESHARD_TRY(
      RankBuffers::allocate(layout, {&me, 1}, {.prefault_threads = 1, .shared = true})));
}

}  // namespace

Result<std::unique_ptr<PlainPulls>> PlainPulls::make(const RankJob& job, bool shared) {
  std::unique_ptr<PlainPulls> out(new PlainPulls(job));
  out->bytes_ = RESHARD_TRY(job.bytes_delivered());
  out->block_ = std::min(kMaxBlock, RESHARD_TRY(job.max(out->bytes_)));
  out->plain_ =
      RESHARD_TRY(HostBuffer::allocate(out->block_, {.prefault_threads = 1, .shared = shared}));
  std::memset(out->plain_.data(), 0x5A, static_cast<std::size_t>(out->block_));
  if (out->bytes_ > 0)
    out->into_ = RESHARD_TRY(HostBuffer::allocate(out->block_, {.prefault_threads = 1}));
  RESHARD_TRY(out->open_peers());
  return out;
}

Result<> PlainPulls::open_peers() {
  const ProcessGroup& group = job_.group;
  const auto key = RESHARD_TRY(group.transport->share(plain_.bytes()));
  const auto keys = RESHARD_TRY(group.control->all_gather(key, patient()));
  for (int r = 1; r < job_.size(); ++r) {
    const Rank peer((job_.rank().value() + r) % job_.size());
    peers_.push_back(RESHARD_TRY(group.transport->open(peer, keys[peer.index()])));
  }
  return {};
}

Result<> PlainPulls::pull(const PlainWay* way) {
  std::size_t peer = 0;
  for (Index left = bytes_; left > 0; peer = (peer + 1) % peers_.size()) {
    const Index n = std::min(left, block_);
    const RemoteMemory& from = peers_[peer];
    if (way == nullptr) {
      const Get piece{&from, 0, into_.bytes().first(static_cast<std::size_t>(n))};
      RESHARD_TRY(job_.group.transport->get({&piece, 1}));
    } else {
      way->copy(into_.data(), from.address, n);
    }
    left -= n;
  }
  return {};
}

std::vector<Contender> PlainPulls::contenders() {
  const auto contender = [this](const std::string& name, const PlainWay* way) {
    return together(job_, name, [this, way] { return pull(way); });
  };
  const bool mapped =
      std::ranges::all_of(peers_, [](const RemoteMemory& peer) { return peer.address != nullptr; });
  if (!mapped) return {contender("pull_get", nullptr)};
  std::vector<Contender> out;
  for (const PlainWay& way : plain_ways())
    out.push_back(contender(std::string("pull_") + way.name, &way));
  return out;
}

Result<std::unique_ptr<WholeTensors>> WholeTensors::make(const RankJob& job, Way way) {
  std::unique_ptr<WholeTensors> out(new WholeTensors(job, way));
  const auto& [source, target] = job.layouts;
  const auto model = source->shared_model();
  const auto targets = target->ranks().members(), sources = source->ranks().members();
  const Index first = targets.front().value();
  const auto whole =
      RESHARD_TRY(whole_layout(model, first, Index{targets.back().value()} - first + 1));
  out->whole_ = RESHARD_TRY(buffers_of(whole, job.rank()));
  if (way == Way::gather) {
    const auto gathered = RESHARD_TRY(whole_layout(model, sources.front().value(), 1));
    out->gathered_ = RESHARD_TRY(buffers_of(gathered, job.rank()));
    RESHARD_TRY(out->add_step(source, job.source.get(), gathered, out->gathered_.get()));
    RESHARD_TRY(out->add_step(gathered, out->gathered_.get(), whole, out->whole_.get()));
  } else {
    RESHARD_TRY(out->add_step(source, job.source.get(), whole, out->whole_.get()));
  }
  RESHARD_TRY(out->add_step(whole, out->whole_.get(), target, job.target.get()));
  return out;
}

Result<> WholeTensors::add_step(const std::shared_ptr<const ModelLayout>& from,
                                const RankBuffers* source,
                                const std::shared_ptr<const ModelLayout>& to,
                                const RankBuffers* target) {
  steps_.push_back(std::make_unique<Step>(Step{RESHARD_TRY(Planner::make(from, to)), nullptr}));
  Step& step = *steps_.back();
  RankRefitOptions options;
  options.seconds = 300;
  step.refit = std::make_unique<RankRefit>(RESHARD_TRY(RankRefit::prepare(
      step.planner, source, target, *job_.group.transport, *job_.group.control, options)));
  return {};
}

Contender WholeTensors::contender() {
  return together(job_, way_ == Way::gather ? "gather" : "broadcast", [this]() -> Result<> {
    for (const auto& step : steps_) RESHARD_TRY(step->refit->run());
    return {};
  });
}

}  // namespace reshard::bench
