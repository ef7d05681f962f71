// SPDX-License-Identifier: Apache-2.0
// The cost of a message through shm with each access method, compared to one copy of the same bytes
// out of shared memory. Ranks are threads that access each other's memory as processes would: each
// maps the file of the other.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/memory/shared_arena.h"
#include "reshard/memory/stream_copy.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm.h"
#include "reshard/transport/testing/rank_threads_testutil.h"

namespace reshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSteps = 8;
constexpr Index kMiB = 1 << 20;

HostBuffer memory(Index bytes, bool shared) {
  auto buffer = HostBuffer::allocate(bytes, {.prefault_threads = 1, .shared = shared});
  RESHARD_CHECK(buffer);
  std::ranges::fill(buffer->bytes(), std::byte{1});
  return std::move(*buffer);
}

/// Seconds that body(rank, transport, step) takes on the slower of two ranks, over kSteps after a
/// first one that is not counted.
template <class Body>
double seconds_per_step(const char* ways, Body body) {
  setenv("RESHARD_SHM", ways, 1);
  auto group = *InprocGroup::create(2);
  std::vector<double> seconds(2);
  RESHARD_CHECK(run_ranks(2, [&](Rank rank) {
    auto control = *group.control(rank);
    auto transport = *shm::make_transport(*control, {});
    body(rank, *transport, 0);
    RESHARD_CHECK(control->barrier(Deadline::never()));
    const auto begin = Clock::now();
    for (std::uint64_t step = 1; step <= kSteps; ++step) body(rank, *transport, step);
    seconds[rank.index()] = std::chrono::duration<double>(Clock::now() - begin).count();
    RESHARD_CHECK(control->barrier(Deadline::never()));
  }));
  unsetenv("RESHARD_SHM");
  return *std::ranges::max_element(seconds) / kSteps;
}

void send_or_receive(Transport& transport, std::span<const Send> sends,
                     std::span<const Recv> recvs) {
  auto event = transport.exchange(sends, recvs);
  RESHARD_CHECK(event && (*event)->wait(Deadline::never()));
}

/// One thread copies from a second mapping of a shared buffer into private memory.
void one_copy(benchmark::State& state, bool streamed) {
  auto from = memory(state.range(0), true);
  auto to = memory(state.range(0), false);
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto place = *shared_arena::find(from.bytes());
  void* view =
      mmap(nullptr, bytes, PROT_READ, MAP_SHARED, place.fd, static_cast<off_t>(place.offset));
  RESHARD_CHECK(view != MAP_FAILED);
  std::memcpy(to.data(), view, bytes);
  for (auto _ : state) {
    if (streamed) {
      stream_copy(to.data(), static_cast<std::byte*>(view), bytes);
    } else {
      std::memcpy(to.data(), view, bytes);
    }
    benchmark::ClobberMemory();
  }
  munmap(view, bytes);
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

/// Rank 0 sends one message to rank 1.
void one_way(benchmark::State& state, const char* ways, bool shared) {
  auto from = memory(state.range(0), shared);
  auto to = memory(state.range(0), false);
  for (auto _ : state) {
    state.SetIterationTime(
        seconds_per_step(ways, [&](Rank rank, Transport& transport, std::uint64_t step) {
          const Send send{Rank{1}, MessageId{step}, from.bytes()};
          const Recv recv{Rank{0}, MessageId{step}, to.bytes()};
          rank == Rank{0} ? send_or_receive(transport, {&send, 1}, {})
                          : send_or_receive(transport, {}, {&recv, 1});
        }));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

/// Many messages of some bytes, both ways at once.
void many(benchmark::State& state) {
  const auto messages = static_cast<std::size_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  const auto all = static_cast<Index>(messages * bytes);
  HostBuffer from[] = {memory(all, true), memory(all, true)};
  HostBuffer to[] = {memory(all, false), memory(all, false)};
  for (auto _ : state) {
    state.SetIterationTime(
        seconds_per_step("mapped,readv", [&](Rank rank, Transport& transport, std::uint64_t step) {
          const Rank peer{1 - rank.value()};
          std::vector<Send> sends;
          std::vector<Recv> recvs;
          for (std::size_t i = 0; i < messages; ++i) {
            const MessageId id{step * messages + i};
            sends.push_back({peer, id, from[rank.index()].bytes().subspan(i * bytes, bytes)});
            recvs.push_back({peer, id, to[rank.index()].bytes().subspan(i * bytes, bytes)});
          }
          send_or_receive(transport, sends, recvs);
        }));
  }
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0) * state.range(1));
  state.SetItemsProcessed(state.iterations() * 2 * state.range(0));
}

/// A round trip, a hundred times per step.
void ping_pong(benchmark::State& state) {
  constexpr std::uint64_t kTimes = 100;
  const auto bytes = static_cast<Index>(state.range(0));
  HostBuffer room[] = {memory(bytes, true), memory(bytes, true)};
  for (auto _ : state) {
    const double seconds =
        seconds_per_step("mapped,readv", [&](Rank rank, Transport& transport, std::uint64_t step) {
          const Rank peer{1 - rank.value()};
          for (std::uint64_t i = 0; i < kTimes; ++i) {
            const Send send{peer, MessageId{step * kTimes + i}, room[rank.index()].bytes()};
            const Recv recv{peer, MessageId{step * kTimes + i}, room[rank.index()].bytes()};
            if (rank == Rank{0}) send_or_receive(transport, {&send, 1}, {});
            send_or_receive(transport, {}, {&recv, 1});
            if (rank == Rank{1}) send_or_receive(transport, {&send, 1}, {});
          }
        });
    state.SetIterationTime(seconds / kTimes / 2);
  }
}

BENCHMARK_CAPTURE(one_copy, shm_memcpy, false)->Arg(64 * kMiB)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_copy, shm_streamed, true)->Arg(64 * kMiB)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_way, shm_mapped, "mapped", true)
    ->Arg(64 * kMiB)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_way, shm_readv, "readv", false)
    ->Arg(64 * kMiB)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(one_way, shm_ring, "ring", false)
    ->Arg(64 * kMiB)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(many)
    ->Name("shm_many")
    ->ArgNames({"messages", "bytes"})
    ->Args({50'000, 8})
    ->Args({16'384, 4096})
    ->Args({1024, 65'536})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(ping_pong)
    ->Name("shm_ping_pong")
    ->Arg(8)
    ->Arg(65'536)
    ->Iterations(20)  // Each makes a group and 900 round trips.
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace reshard
