// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/job.h"

#include <algorithm>
#include <map>

namespace reshard {
namespace {

/// The least that RankRefit takes.
constexpr Index kLeastStaging = Index{32} << 10;

}  // namespace

Result<Job> Job::prepare(const JobInput& input) {
  Job job;
  RESHARD_TRY(job.add_plain(input));
  const ModelLayout &from = *input.source.values(), &to = *input.target.values();
  for (Index i = 0; i < to.model().size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    job.moved_.push_back(!from.places(id).empty() && !to.places(id).empty());
    job.conversions_.direct += job.moved_.back() ? 1 : 0;
  }
  return job;
}

Result<> Job::add_plain(const JobInput& input) {
  Wave wave;
  wave.planner = std::make_unique<Planner>(RESHARD_TRY(Planner::make(
      input.source.stored(), input.target.stored(), {.ignore = input.options.ignore})));
  count_peers(*wave.planner, input.me());
  const bool doubled = input.options.buffering == Buffering::doubled;
  RankRefitOptions options = input.options.refit;
  if (doubled) options.staging_bytes = std::max(kLeastStaging, options.staging_bytes / 2);
  const std::array<const RankBuffers*, 2> copies = {input.target.buffers, input.target.back};
  for (std::size_t c = 0; c < (doubled ? 2U : 1U); ++c)
    wave.refits[c] = RESHARD_TRY(RankRefit::prepare(*wave.planner, input.source.buffers, copies[c],
                                                    input.transport, input.control, options));
  waves_.push_back(std::move(wave));
  return {};
}

void Job::count_peers(const Planner& planner, Rank me) {
  std::map<Rank, PeerVolume> volumes;
  for (const PeerVolume& peer : peers_) volumes[peer.peer] = peer;
  const RankPlan part = planner.part(me);
  const auto bytes = [&](const Transfer& t) {
    return t.box.volume() * planner.element_bits(t.tensor) / 8;
  };
  for (const Transfer& t : part.sends) volumes[t.dst].sent += bytes(t);
  for (const Transfer& t : part.recvs) volumes[t.src].received += bytes(t);
  peers_.clear();
  for (auto& [rank, volume] : volumes) {
    volume.peer = rank;
    peers_.push_back(volume);
  }
}

Result<> Job::run(int copy, SessionReport& report) {
  for (Wave& wave : waves_) {
    const RankReport moved = RESHARD_TRY(wave.refits[static_cast<std::size_t>(copy)]->run());
    report.move_seconds += moved.seconds;
    report.bytes += moved.bytes;
    report.sent += moved.sent;
    report.received += moved.received;
    report.copied += moved.copied;
  }
  return {};
}

std::string_view Job::path() const { return waves_.front().refits[0]->path(); }
const std::string& Job::reason() const { return waves_.front().refits[0]->reason(); }

Index Job::staging_bytes() const {
  Index bytes = 0;
  for (const Wave& wave : waves_)
    for (const auto& refit : wave.refits) bytes += refit ? refit->staging_bytes() : 0;
  return bytes;
}

}  // namespace reshard
