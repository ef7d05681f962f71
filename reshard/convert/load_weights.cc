// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/load_weights.h"

#include <cstring>

#include "reshard/convert/checkpoint_source.h"
#include "reshard/exec/in_process.h"
#include "reshard/exec/stream.h"
#include "reshard/io/layout_side.h"
#include "reshard/io/make_layout.h"

namespace reshard {
namespace {

Result<> load_rank(const CheckpointSource& files, const Planner& planner,
                   const RankBuffers& buffers, Rank rank, const LoadOptions& how) {
  StreamOptions options;
  options.threads = how.threads;
  options.progress = how.progress;
  options.ahead = [&](std::span<const std::byte> memory) { files.prefetch(memory); };
  options.done = [&](std::span<const std::byte> memory) { files.drop(memory); };
  const StreamSink sink = [&](Rank r, SlotId slot, Index offset,
                              std::span<const std::byte> bytes) -> Result<> {
    std::memcpy(buffers.at(r, slot) + offset, bytes.data(), bytes.size());
    return {};
  };
  return stream_rank(planner, files.buffers(), rank, buffers.layout().slots_of(rank), sink,
                     options);
}

Result<> load_all(const CheckpointSource& files, const Planner& planner, const RankBuffers& buffers,
                  const LoadOptions& how) {
  InProcessOptions options;
  options.threads = how.threads;
  options.progress = how.progress;
  auto refit = RESHARD_TRY(InProcessRefit::prepare(planner, files.buffers(), buffers, options));
  RESHARD_TRY(refit.run());
  return {};
}

Result<> load(const Model& model, const RankBuffers& buffers, std::optional<Rank> rank,
              const LoadOptions& options) {
  const auto own = RESHARD_TRY(own_side(model, holds_codes(model, buffers.layout()))).stored();
  const auto files = RESHARD_TRY(CheckpointSource::bind(model, own));
  const Planner planner = RESHARD_TRY(Planner::make(own, buffers.shared_layout()));
  return rank ? load_rank(files, planner, buffers, *rank, options)
              : load_all(files, planner, buffers, options);
}

}  // namespace

Result<> load_weights(const Model& model, const RankBuffers& buffers, std::optional<Rank> rank,
                      const LoadOptions& options) {
  auto loaded = load(model, buffers, rank, options);
  RESHARD_TRY(model.unchanged());
  return loaded;
}

}  // namespace reshard
