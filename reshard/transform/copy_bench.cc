// SPDX-License-Identifier: Apache-2.0
// Copies of 256 MiB in the shapes of a refit, each in turn with plain copies of as many bytes:
// libc's, and textbook streaming stores. "ratio" compares with the better of the two; "plain" is
// reshard's own contiguous copy. With threads, each thread does its part of the same work at the
// same time.
#include <cstring>
#include <thread>
#include <vector>

#include "reshard/transform/bench_reference_testutil.h"
#include "reshard/transform/copy.h"

namespace reshard {
namespace {

constexpr Index kBytes = Index{256} << 20;
constexpr Index kRows = 2048;

/// Runs f(thread) in `threads` threads at once.
template <class F>
void in_threads(int threads, F f) {
  std::vector<std::jthread> workers;
  for (int t = 1; t < threads; ++t) workers.emplace_back([&f, t] { f(t); });
  f(0);
}

/// Measures `tasks`, split into one part of consecutive tasks per thread, in multiples of `unit`.
void measure(benchmark::State& state, const std::vector<CopyTask>& tasks, std::size_t unit,
             int threads) {
  std::byte* const dst = bench_buffer("dst", kBytes).data();
  const std::byte* const src = bench_buffer("src", kBytes).data();
  Index bytes = 0;
  for (const CopyTask& t : tasks) bytes += t.copy.bytes();
  const Index plain = kBytes / threads / 4096 * 4096;
  const std::size_t units = tasks.size() / unit;
  const auto part = [&](int t) {
    const std::size_t begin =
        units * static_cast<std::size_t>(t) / static_cast<std::size_t>(threads);
    const std::size_t end =
        units * static_cast<std::size_t>(t + 1) / static_cast<std::size_t>(threads);
    run_copies(std::span(tasks).subspan(begin * unit, (end - begin) * unit), CopyHint::streaming);
    copy_fence();
  };
  const std::vector<Contender> contenders = {
      {"ours", bytes, [&] { in_threads(threads, part); }},
      {"libc", plain * threads,
       [&] {
         in_threads(threads, [&](int t) {
           std::memcpy(dst + t * plain, src + t * plain, static_cast<std::size_t>(plain));
         });
       }},
      {"textbook", plain * threads,
       [&] {
         in_threads(threads, [&](int t) {
           textbook_streaming_copy(dst + t * plain, src + t * plain, plain);
         });
       }},
      {"plain", plain * threads,
       [&] {
         in_threads(threads, [&](int t) {
           copy_bytes(dst + t * plain, src + t * plain, plain, CopyHint::streaming);
           copy_fence();
         });
       }},
  };
  measure_by_turns(state, contenders, 2);
}

/// Tensors of kRows rows: `slices` column slices of `run` bytes each, side by side in rows of
/// `pitch` bytes on one side, packed on the other.
void column_slices(benchmark::State& state, bool gather) {
  const Index run = state.range(0), parts = state.range(1), slices = state.range(2),
              pitch = run * parts;
  const Index tensors = std::max<Index>(kBytes / (kRows * run * slices), 2);
  std::byte* const wide =
      bench_buffer(gather ? "wide_src" : "wide_dst", tensors * kRows * pitch).data();
  std::byte* const narrow =
      bench_buffer(gather ? "narrow_dst" : "narrow_src", tensors * kRows * run * slices).data();
  std::vector<CopyTask> tasks;
  for (Index i = 0; i < tensors * slices; ++i) {
    const Index row = i / slices * kRows, column = i % slices * run;
    StridedCopy copy{.run_bytes = run, .num_loops = 1};
    copy.loops[0] = {kRows, gather ? pitch : run, gather ? run : pitch};
    std::byte* const in_wide = wide + row * pitch + column;
    std::byte* const in_narrow = narrow + i * kRows * run;
    tasks.push_back(gather ? CopyTask{copy, in_wide, in_narrow}
                           : CopyTask{copy, in_narrow, in_wide});
  }
  measure(state, tasks, static_cast<std::size_t>(slices), static_cast<int>(state.range(3)));
}

void BM_from_columns(benchmark::State& state) { column_slices(state, true); }
void BM_into_columns(benchmark::State& state) { column_slices(state, false); }

/// Contiguous copies of one size, in pseudo-random order.
void BM_contiguous(benchmark::State& state) {
  const Index bytes = state.range(0), count = kBytes / bytes;
  std::byte* const dst = bench_buffer("dst", kBytes).data();
  const std::byte* const src = bench_buffer("src", kBytes).data();
  std::vector<CopyTask> tasks;
  for (Index i = 0; i < count; ++i) {
    const Index at = i * 0x9e3779b1 % count * bytes;
    tasks.push_back({{.run_bytes = bytes}, src + at, dst + at});
  }
  measure(state, tasks, 1, static_cast<int>(state.range(1)));
}

void BM_transposed(benchmark::State& state) {
  const Index element = state.range(0), side = state.range(1);
  const Index count = kBytes / (side * side * element);
  std::byte* const dst = bench_buffer("dst", kBytes).data();
  const std::byte* const src = bench_buffer("src", kBytes).data();
  StridedCopy copy{.run_bytes = element, .num_loops = 2};
  copy.loops[0] = {side, element, side * element};
  copy.loops[1] = {side, side * element, element};
  std::vector<CopyTask> tasks;
  for (Index i = 0; i < count; ++i)
    tasks.push_back({copy, src + i * side * side * element, dst + i * side * side * element});
  measure(state, tasks, 1, 1);
}

void in_one_and_two_threads(benchmark::internal::Benchmark* b, std::vector<std::int64_t> args) {
  for (int threads : {1, 2}) {
    args.push_back(threads);
    b->Args(args);
    args.pop_back();
  }
}

void column_cases(benchmark::internal::Benchmark* b) {
  for (Index slices : {8, 1})
    for (Index run : {192, 256, 464, 512, 1024, 2048, 3584, 4096, 5760, 16384})
      in_one_and_two_threads(b, {run, 8, slices});
  in_one_and_two_threads(b, {192, 2, 2});
  in_one_and_two_threads(b, {192, 8, 2});
  in_one_and_two_threads(b, {2048, 2, 1});
}

void contiguous_cases(benchmark::internal::Benchmark* b) {
  for (Index kib : {1, 4, 8, 16, 64, 1024, 262144}) in_one_and_two_threads(b, {kib * 1024});
}

BENCHMARK(BM_contiguous)
    ->Apply(contiguous_cases)
    ->ArgNames({"bytes", "threads"})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_from_columns)
    ->Apply(column_cases)
    ->ArgNames({"run", "of", "slices", "threads"})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_into_columns)
    ->Apply(column_cases)
    ->ArgNames({"run", "of", "slices", "threads"})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_transposed)
    ->Args({1, 4096})
    ->Args({2, 4096})
    ->Args({4, 4096})
    ->Args({8, 2048})
    ->ArgNames({"element", "side"})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace reshard
