// SPDX-License-Identifier: Apache-2.0
#include "cli/own_weights.h"

#include <cstring>

#include "cli/checkpoint_source.h"
#include "cli/layout_source.h"
#include "cli/oracle_values.h"
#include "reshard/exec/stream.h"

namespace reshard::cli {
namespace {

Result<std::optional<RankBuffers>> allocate(const std::shared_ptr<const ModelLayout>& layout,
                                            Rank rank, const RunJob& job, bool shared) {
  if (!layout->ranks().contains(rank)) return std::optional<RankBuffers>();
  HostBuffer::Options options{job.threads};
  options.shared = shared;
  return RESHARD_TRY(RankBuffers::allocate(layout, {&rank, 1}, options));
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

}  // namespace

Result<OwnWeights> own_weights(const RunJob& job, Rank rank, bool shared,
                               const Progress& progress) {
  OwnWeights own;
  own.source = RESHARD_TRY(allocate(job.pair.source, rank, job, shared));
  own.target = RESHARD_TRY(allocate(job.pair.target, rank, job, shared));
  if (!own.source) return own;
  RESHARD_TRY(job.model.weights
                  ? fill_from_files(*own.source, rank, job, progress)
                  : fill_from_oracle(*own.source, job.arguments.seed, job.threads, progress));
  return own;
}

Index total_bytes(const ModelLayout& layout) {
  Index total = 0;
  layout.ranks().for_each([&](Rank r) { total += local_bytes(layout, r); });
  return total;
}

}  // namespace reshard::cli
