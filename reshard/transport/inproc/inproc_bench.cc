// SPDX-License-Identifier: Apache-2.0
// The cost of a step between threads, compared to a plain copy of the same bytes by as many
// threads.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/rank_threads_testutil.h"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr int kSteps = 8;

/// Seconds that the slowest rank needs for one call of body(rank, transport, step), over kSteps
/// after a first one that is not counted.
template <class Prepare>
double seconds_per_step(Prepare prepare) {
  auto group = *InprocGroup::create(kRanks);
  std::vector<double> seconds(kRanks);
  RESHARD_CHECK(run_ranks(kRanks, [&](Rank rank) {
    auto transport = *group.transport(rank);
    auto control = *group.control(rank);
    auto body = prepare(rank, *transport);
    body(0);
    RESHARD_CHECK(control->barrier(Deadline::never()));
    const auto begin = Clock::now();
    for (std::uint64_t step = 1; step <= kSteps; ++step) body(step);
    RESHARD_CHECK(control->barrier(Deadline::never()));
    seconds[rank.index()] = std::chrono::duration<double>(Clock::now() - begin).count();
  }));
  return *std::ranges::max_element(seconds) / kSteps;
}

/// Each rank copies `bytes` of its own, without a transport.
void plain_copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    state.SetIterationTime(seconds_per_step([&](Rank, Transport&) {
      return [from = Bytes(bytes, std::byte{1}), to = Bytes(bytes)](std::uint64_t) mutable {
        std::memcpy(to.data(), from.data(), to.size());
        benchmark::ClobberMemory();
      };
    }));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * kRanks);
}

/// Each rank sends `messages` messages to the other, which are `bytes` together.
void exchange(benchmark::State& state) {
  const auto messages = static_cast<std::size_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  for (auto _ : state) {
    state.SetIterationTime(seconds_per_step([&](Rank rank, Transport& transport) {
      return [&, peer = Rank{1 - rank.value()}, from = Bytes(bytes, std::byte{1}),
              to = Bytes(bytes)](std::uint64_t step) mutable {
        const std::size_t each = bytes / messages;
        std::vector<Send> sends;
        std::vector<Recv> recvs;
        for (std::size_t i = 0; i < messages; ++i) {
          const MessageId id{step * messages + i};
          sends.push_back({peer, id, std::span<const std::byte>(from).subspan(i * each, each)});
          recvs.push_back({peer, id, std::span(to).subspan(i * each, each)});
        }
        auto event = transport.exchange(sends, recvs);
        RESHARD_CHECK(event && (*event)->wait(Deadline::never()));
      };
    }));
  }
  state.SetBytesProcessed(state.iterations() * state.range(1) * kRanks);
  state.SetItemsProcessed(state.iterations() * state.range(0) * kRanks);
}

/// Rank 0 sends one message to rank 1, and both copy.
void one_way(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    state.SetIterationTime(seconds_per_step([&](Rank rank, Transport& transport) {
      return [&, rank, memory = Bytes(bytes, std::byte{1})](std::uint64_t step) mutable {
        const Send send{Rank{1}, MessageId{step}, memory};
        const Recv recv{Rank{0}, MessageId{step}, memory};
        auto event = rank == Rank{0} ? transport.exchange({&send, 1}, {})
                                     : transport.exchange({}, {&recv, 1});
        RESHARD_CHECK(event && (*event)->wait(Deadline::never()));
      };
    }));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

constexpr std::int64_t kMiB = 1 << 20;
BENCHMARK(plain_copy)->Arg(64 * kMiB)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK(exchange)
    ->ArgNames({"messages", "bytes"})
    ->Args({1, 64 * kMiB})
    ->Args({64, 64 * kMiB})
    ->Args({1024, 64 * kMiB})
    ->Args({16384, 64 * kMiB})
    ->Args({50'000, 400'000})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(one_way)->Arg(128 * kMiB)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace reshard
