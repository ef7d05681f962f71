// SPDX-License-Identifier: Apache-2.0
#include "cli/own_weights.h"

#include <cstring>

#include "cli/checkpoint_source.h"
#include "cli/made_check.h"
#include "cli/made_sides.h"
#include "cli/oracle_values.h"
#include "cli/test_stop.h"
#include "reshard/exec/in_process.h"
#include "reshard/exec/stream.h"
#include "reshard/io/files/mapping_guard.h"
#include "reshard/io/make_layout.h"

namespace reshard::cli {
namespace {

/// Of one rank, or of all.
Result<std::optional<RankBuffers>> allocate(const std::shared_ptr<const ModelLayout>& layout,
                                            std::optional<Rank> rank, const RunJob& job,
                                            bool shared) {
  if (rank && !layout->ranks().contains(*rank)) return std::optional<RankBuffers>();
  HostBuffer::Options options{job.threads};
  options.shared = shared;
  const auto ranks = rank ? std::vector<Rank>{*rank} : layout->ranks().members();
  return RESHARD_TRY(RankBuffers::allocate(layout, ranks, options));
}

Result<OwnWeights> allocate_sides(std::optional<Rank> rank, const RunJob& job, bool shared) {
  OwnWeights own;
  own.source = RESHARD_TRY(allocate(job.pair.from.stored(), rank, job, shared));
  own.target = RESHARD_TRY(allocate(job.pair.to.stored(), rank, job, shared));
  if (job.arguments.buffering == Buffering::doubled)
    own.back = RESHARD_TRY(allocate(job.pair.to.stored(), rank, job, shared));
  return own;
}

Result<> fill_from_files(const RankBuffers& source, Rank rank, const RunJob& job,
                         const Progress& progress) {
  const auto own = RESHARD_TRY(own_layout(job.model));
  const auto files = RESHARD_TRY(CheckpointSource::bind(job.model, own));
  const Planner planner = RESHARD_TRY(Planner::make(own, source.shared_layout()));
  StreamOptions options;
  options.threads = job.threads;
  options.progress = progress;
  const StreamSink sink = [&](Rank r, SlotId slot, Index offset,
                              std::span<const std::byte> bytes) -> Result<> {
    std::memcpy(source.at(r, slot) + offset, bytes.data(), bytes.size());
    return {};
  };
  const StreamDone done = [&](Rank from, SlotId slot, Index offset, Index bytes) {
    files.drop(from, slot, offset, bytes);
  };
  return stream_rank(planner, files.buffers(), rank, source.layout().slots_of(rank), sink, done,
                     options);
}

/// The same into the memory of all ranks.
Result<> fill_from_files(const RankBuffers& source, const RunJob& job, const Progress& progress) {
  const auto own = RESHARD_TRY(own_layout(job.model));
  const auto files = RESHARD_TRY(CheckpointSource::bind(job.model, own));
  const Planner planner = RESHARD_TRY(Planner::make(own, source.shared_layout()));
  InProcessOptions options;
  options.threads = job.threads;
  options.progress = progress;
  auto refit = RESHARD_TRY(InProcessRefit::prepare(planner, files.buffers(), source, options));
  RESHARD_TRY(refit.run());
  return {};
}

Result<> fill_made(const RankBuffers& source, const RunJob& job, const Progress& progress) {
  auto sides = RESHARD_TRY(MadeSides::of(job));
  return fill_from_side(sides.source(), source, job.threads, progress);
}

/// Into the memory of one rank, or of all. What a checkpoint gives counts only when it was the same
/// all the while.
Result<> fill(const RankBuffers& source, std::optional<Rank> rank, const RunJob& job,
              const Progress& progress) {
  if (!job.pair.quantises() && !job.model.weights)
    return fill_from_oracle(source, job.arguments.seed, job.threads, progress);
  guard_mappings();  // a transport may have taken the signal
  stop_for_test("start");
  Result<> filled;
  if (job.pair.quantises())
    filled = fill_made(source, job, progress);
  else if (rank)
    filled = fill_from_files(source, *rank, job, progress);
  else
    filled = fill_from_files(source, job, progress);
  if (job.model.weights) RESHARD_TRY(job.model.weights->unchanged());
  return filled;
}

}  // namespace

Result<OwnWeights> own_weights(const RunJob& job, Rank rank, bool shared,
                               const Progress& progress) {
  OwnWeights own = RESHARD_TRY(allocate_sides(rank, job, shared));
  if (own.source) RESHARD_TRY(fill(*own.source, rank, job, progress));
  return own;
}

Result<OwnWeights> all_weights(const RunJob& job, const Progress& progress) {
  OwnWeights all = RESHARD_TRY(allocate_sides(std::nullopt, job, false));
  RESHARD_TRY(fill(*all.source, std::nullopt, job, progress));
  return all;
}

Index total_bytes(const ModelLayout& layout) {
  Index total = 0;
  layout.ranks().for_each([&](Rank r) { total += local_bytes(layout, r); });
  return total;
}

}  // namespace reshard::cli
