// SPDX-License-Identifier: Apache-2.0
// Bytes of a block per second, coded and applied, where a share of its bf16 elements changes by
// one.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "reshard/transform/delta/delta_code.h"

namespace reshard {
namespace {

struct Versions {
  std::vector<std::byte> base = std::vector<std::byte>(kDeltaBlockBytes), next;

  /// `per_mille` of the elements change.
  explicit Versions(std::int64_t per_mille) {
    std::mt19937 random(1);
    for (std::byte& b : base) b = static_cast<std::byte>(random());
    next = base;
    for (std::size_t at = 0; at < next.size(); at += 2)
      if (static_cast<std::int64_t>(random() % 1000) < per_mille) next[at] ^= std::byte{1};
  }
};

void encode(benchmark::State& state) {
  const Versions versions(state.range(0));
  DeltaEncoder encoder;
  std::size_t bytes = 0;
  for (auto _ : state) bytes = encoder.encode(versions.base, versions.next, 2).size();
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kDeltaBlockBytes));
  state.counters["share"] = static_cast<double>(bytes) / static_cast<double>(kDeltaBlockBytes);
}
BENCHMARK(encode)->Arg(0)->Arg(1)->Arg(15)->Arg(130)->Arg(1000);

void apply(benchmark::State& state) {
  const Versions versions(state.range(0));
  DeltaEncoder encoder;
  const auto code = encoder.encode(versions.base, versions.next, 2);
  std::vector<std::byte> block = versions.base;
  for (auto _ : state) benchmark::DoNotOptimize(apply_delta_code(code, 2, block));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(kDeltaBlockBytes));
}
BENCHMARK(apply)->Arg(1)->Arg(15)->Arg(130)->Arg(1000);

}  // namespace
}  // namespace reshard
