// SPDX-License-Identifier: Apache-2.0
// Refits between ranks that are threads: from peers' memory, by get(), over messages, and mixed
// between two hosts (ranks in turn), on the shapes of one layer of Qwen3-30B-A3B. The items are
// bytes delivered, of all ranks together.
#include <benchmark/benchmark.h>

#include <cstring>
#include <mutex>

#include "reshard/base/check.h"
#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/rank_threads_testutil.h"

namespace reshard {
namespace {

struct Way {
  const char* name;
  Limit limit;
  RefitPath path;
  Index in_place_bytes;
  int hosts = 1;
};
constexpr Way kWays[] = {
    {"direct", Limit::none, RefitPath::direct, 0},
    {"get", Limit::no_address, RefitPath::direct, 0},
    {"message", Limit::none, RefitPath::message, Index{64} << 10},
    {"message, runs from 4 KiB in place", Limit::none, RefitPath::message, Index{4} << 10},
    {"message, all packed", Limit::none, RefitPath::message, Index{1} << 60},
    {"mixed, two hosts", Limit::none, RefitPath::automatic, Index{64} << 10, 2},
};
constexpr const char* kPairs[][2] = {
    {"megatron:tp=2,pp=1,ep=2,etp=1", "vllm:tp=2,offset=2"},
    {"megatron:tp=4,pp=1,ep=4,etp=1", "vllm:tp=2,offset=4"},
    {"megatron:tp=2,pp=1,ep=2,etp=1", "vllm:tp=4"},
};

struct Job {
  explicit Job(const char* const (&pair)[2]) {
    config.num_hidden_layers = 1;
    config.layers.resize(1);
    config.vocab_size = 4096;
    model = model_of(config);
    from = layout_of(pair[0], model, config);
    to = layout_of(pair[1], model, config);
  }
  ModelConfig config = qwen3_30b();
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const ModelLayout> from, to;
};

/// One rank: as many refits as the benchmark wants; rank 0 reports their seconds.
Result<> refit_rank(InprocGroup& group, Rank r, const Planner& planner, const RankBuffers& source,
                    const RankBuffers& target, const Way& way, benchmark::State& state,
                    std::mutex& mutex, Index& bytes) {
  const auto control = RESHARD_TRY(group.control(r));
  LimitedTransport transport(RESHARD_TRY(group.transport(r)), way.limit, way.hosts);
  RankRefitOptions options;
  options.path = way.path;
  options.in_place_bytes = way.in_place_bytes;
  auto refit =
      RESHARD_TRY(RankRefit::prepare(planner, &source, &target, transport, *control, options));
  RESHARD_TRY(refit.run());
  const Deadline deadline = Deadline::never();
  for (bool go = true; go;) {
    if (r == Rank(0)) go = state.KeepRunning();
    const std::byte mine{go};
    go = std::to_integer<bool>(RESHARD_TRY(control->all_gather({&mine, 1}, deadline))[0][0]);
    if (!go) break;
    const RankReport report = RESHARD_TRY(refit.run());
    if (r == Rank(0)) state.SetIterationTime(report.seconds);
    const std::lock_guard lock(mutex);
    bytes += report.bytes;
  }
  return control->quiesce(deadline);
}

void refit(benchmark::State& state) {
  const Job job(kPairs[state.range(0)]);
  const Way& way = kWays[state.range(1)];
  const Planner planner = *Planner::make(job.from, job.to);
  const RankBuffers source = allocate_all(job.from), target = allocate_all(job.to);
  // Pages that were never written all map the same zero page.
  for (const Rank r : source.ranks())
    for (const auto memory : source.memory(r)) std::memset(memory.data(), 1, memory.size());
  const int world = planner.ranks().members().back().value() + 1;
  auto group = *InprocGroup::create(world);
  std::mutex mutex;
  Index bytes = 0;
  const auto done = run_ranks(world, [&](Rank r) {
    return refit_rank(group, r, planner, source, target, way, state, mutex, bytes);
  });
  RESHARD_CHECK(done.has_value());
  state.SetBytesProcessed(bytes);
  state.SetLabel(std::string(kPairs[state.range(0)][0]) + " to " + kPairs[state.range(0)][1] +
                 ": " + way.name);
}
BENCHMARK(refit)
    ->ArgsProduct({benchmark::CreateDenseRange(0, 2, 1), benchmark::CreateDenseRange(0, 5, 1)})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace reshard
