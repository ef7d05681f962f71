// SPDX-License-Identifier: Apache-2.0
// The cost of planning from gathered metadata on one rank: Qwen3-235B-A22B, with 1024 ranks that
// train and generate.
#include <benchmark/benchmark.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/reported/gathered.h"
#include "reshard/model/reported/metadata_codec.h"
#include "reshard/model/reported/metadata_testutil.h"
#include "reshard/plan/planner.h"
#include "reshard/plan/reshard_plan.h"

namespace {

using namespace reshard;

struct Gathered {
  GatheredMetadata source, target;
  std::size_t sent_bytes = 0;  ///< what all ranks send of the source.

  Gathered() {
    const ModelConfig c = qwen3_235b();
    const auto model = model_of(c);
    const auto from = layout_of("megatron:tp=4,pp=8,ep=8,etp=1,dp=32,first=11,last=11", model, c);
    const auto to = layout_of("megatron:tp=8,ep=64,etp=1,dp=128,vocab_multiple=64", model, c);
    from->ranks().for_each([&](Rank r) {
      MetadataGatherer one;
      if (one.add(reported_by(*from, c, r)))
        sent_bytes += encode_metadata(std::move(one).finish()).size();
    });
    source = reported_by(*from, c);
    target = reported_by(*to, c);
  }
};

const Gathered& gathered() {
  static const Gathered all;
  return all;
}

void read_metadata(benchmark::State& state) {
  const auto bytes = encode_metadata(gathered().source);
  for (auto _ : state) benchmark::DoNotOptimize(decode_metadata(bytes));
  state.counters["bytes_sent"] = static_cast<double>(gathered().sent_bytes);
  state.counters["bytes_kept"] = static_cast<double>(bytes.size());
}
BENCHMARK(read_metadata)->Unit(benchmark::kMillisecond);

void make_layouts(benchmark::State& state) {
  for (auto _ : state) {
    auto pair = gathered_layouts(gathered().source, gathered().target);
    if (!pair) return state.SkipWithError(pair.error().message.c_str());
    benchmark::DoNotOptimize(pair);
  }
}
BENCHMARK(make_layouts)->Unit(benchmark::kMillisecond);

void plan_one_rank(benchmark::State& state) {
  const auto pair = gathered_layouts(gathered().source, gathered().target);
  if (!pair) return state.SkipWithError(pair.error().message.c_str());
  for (auto _ : state) {
    const auto planner = Planner::make(pair->source, pair->target, {pair->ignore});
    if (!planner) return state.SkipWithError(planner.error().message.c_str());
    benchmark::DoNotOptimize(planner->rank_plan(Rank(513)));
  }
}
BENCHMARK(plan_one_rank)->Unit(benchmark::kMillisecond);

void operations_of_one_rank(benchmark::State& state) {
  const auto pair = gathered_layouts(gathered().source, gathered().target);
  if (!pair) return state.SkipWithError(pair.error().message.c_str());
  const auto planner = Planner::make(pair->source, pair->target, {pair->ignore});
  if (!planner) return state.SkipWithError(planner.error().message.c_str());
  for (auto _ : state) benchmark::DoNotOptimize(replayed_reshard_plan(*planner, Rank(513)));
}
BENCHMARK(operations_of_one_rank)->Unit(benchmark::kMillisecond);

}  // namespace
