// SPDX-License-Identifier: Apache-2.0
#include "cli/run/rank_weights.h"

#include "cli/run/processes/rank_place.h"
#include "cli/test_stop.h"
#include "reshard/convert/load_weights.h"
#include "reshard/convert/reference/byte_check.h"
#include "reshard/convert/reference/oracle_values.h"
#include "reshard/convert/reference/reference_sides.h"
#include "reshard/io/files/mapping_guard.h"

namespace reshard::cli {
namespace {

/// Allocates the memory of one rank, or of all.
Result<std::optional<RankBuffers>> allocate(const std::shared_ptr<const ModelLayout>& layout,
                                            std::optional<Rank> rank, const RunJob& job,
                                            bool shared) {
  if (rank && !layout->ranks().contains(*rank)) return std::optional<RankBuffers>();
  HostBuffer::Options options{job.threads};
  options.shared = shared;
  const auto ranks = rank ? std::vector<Rank>{*rank} : layout->ranks().members();
  return RESHARD_TRY(RankBuffers::allocate(layout, ranks, options));
}

Result<RankWeights> allocate_sides(std::optional<Rank> rank, const RunJob& job, bool shared) {
  RankWeights own;
  own.source = RESHARD_TRY(allocate(job.pair.from.stored(), rank, job, shared));
  own.target = RESHARD_TRY(allocate(job.pair.to.stored(), rank, job, shared));
  if (job.arguments.buffering == Buffering::doubled)
    own.back = RESHARD_TRY(allocate(job.pair.to.stored(), rank, job, shared));
  return own;
}

Result<> fill_from_reference_side(const RankBuffers& source, const RunJob& job,
                                  const Progress& progress) {
  auto sides = RESHARD_TRY(ReferenceSides::of(reference_job(job)));
  return fill_from_reference(sides.source(), source, job.threads, progress);
}

/// Fills the memory of one rank, or of all. A checkpoint must not change meanwhile.
Result<> fill(const RankBuffers& source, std::optional<Rank> rank, const RunJob& job,
              const Progress& progress) {
  if (!job.pair.quantises() && !job.model.weights)
    return fill_from_oracle(source, job.arguments.seed, job.threads, progress);
  guard_mappings();  // a transport may have replaced the signal handler
  stop_for_test("start");
  if (!job.pair.quantises()) return load_weights(job.model, source, rank, {job.threads, progress});
  auto filled = fill_from_reference_side(source, job, progress);
  if (job.model.weights) RESHARD_TRY(job.model.weights->unchanged());
  return filled;
}

}  // namespace

ReferenceJob reference_job(const RunJob& job) {
  const Index processes = job.arguments.in_processes() ? world_of(*job.pair.planner) : 1;
  return {job.model, job.pair, job.arguments.seed, job.arguments.convert, processes};
}

Result<RankWeights> rank_weights(const RunJob& job, Rank rank, bool shared,
                                 const Progress& progress) {
  RankWeights own = RESHARD_TRY(allocate_sides(rank, job, shared));
  if (own.source) RESHARD_TRY(fill(*own.source, rank, job, progress));
  return own;
}

Result<RankWeights> all_weights(const RunJob& job, const Progress& progress) {
  RankWeights all = RESHARD_TRY(allocate_sides(std::nullopt, job, false));
  RESHARD_TRY(fill(*all.source, std::nullopt, job, progress));
  return all;
}

Index total_bytes(const ModelLayout& layout) {
  Index total = 0;
  layout.ranks().for_each([&](Rank r) { total += local_bytes(layout, r); });
  return total;
}

}  // namespace reshard::cli
