// SPDX-License-Identifier: Apache-2.0
// Quantising and dequantising weights, each by turns with libc's copy of half of the bytes that are
// read and written: a copy that moves as much in and out. "ratio" is ours over that.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "reshard/transform/bench_reference.h"
#include "reshard/transform/quantise.h"

namespace reshard {
namespace {

constexpr const char* kFormats[] = {"mxfp8",          "fp8_block",   "mxfp8_swizzled",
                                    "fp8_block_pow2", "fp8_group",   "mxfp4",
                                    "nvfp4",          "fp8_channel", "fp8_tensor"};

/// Runs f(thread) in `threads` threads at once.
template <class F>
void in_threads(int threads, F f) {
  std::vector<std::jthread> workers;
  for (int t = 1; t < threads; ++t) workers.emplace_back([&f, t] { f(t); });
  f(0);
}

/// Matrices of one shape, as many as keep them out of the caches.
struct Weights {
  std::vector<FloatMatrix> plain;
  std::vector<QuantMatrix> small;
  Index bytes = 0;  ///< of all, both forms.
  float amax = 0;
};

Weights weights(const QuantFormat& format, Index rows, Index cols) {
  const Index plain = rows * cols * 2, data = bits(format.data) * rows * cols / 8;
  const Index scales = scale_bytes(format, rows, cols), count = (Index{256} << 20) / plain + 1;
  std::byte* const numbers = bench_buffer("numbers", plain * count).data();
  std::byte* const codes = bench_buffer("codes", (data + 64) * count).data();
  std::byte* const blocks = bench_buffer("scales", (scales + 64) * count).data();
  std::byte* const factors = bench_buffer("factors", 64 * count).data();
  // Finite numbers of a few sizes: random words have NaN and infinities.
  auto* const words = reinterpret_cast<std::uint16_t*>(numbers);
  for (Index i = 0; i < rows * cols * count; ++i)
    words[i] = static_cast<std::uint16_t>((words[i] & 0x87ffU) | 0x3800U);
  Weights all;
  for (Index i = 0; i < count; ++i) {
    all.plain.push_back({numbers + i * plain, DType::bf16, rows, cols, cols * 2});
    all.small.push_back({.format = format,
                         .data = codes + i * ((data + 63) / 64 * 64),
                         .rows = rows,
                         .cols = cols,
                         .row_bytes = bits(format.data) * cols / 8,
                         .scales = blocks + i * ((scales + 63) / 64 * 64),
                         .scale_row_bytes = scale_cols(format, cols) * bits(format.scale) / 8,
                         .factor = factors + 64 * i});
  }
  all.bytes = (plain + data + scales) * count;
  all.amax = amax(all.plain[0]);
  return all;
}

/// Measures f(matrix, begin, end), each thread with its share of every matrix' rows.
template <class F>
void measure(benchmark::State& state, const Weights& all, F f) {
  const int threads = static_cast<int>(state.range(3));
  const Index rows = all.plain[0].rows;
  const auto share = [&](int t) {
    const Index unit = 128, units = (rows + unit - 1) / unit;
    for (std::size_t i = 0; i < all.plain.size(); ++i)
      f(i, units * t / threads * unit, std::min(units * (t + 1) / threads * unit, rows));
  };
  const Index half = all.bytes / 2 / threads / 4096 * 4096;
  std::byte* const src = bench_buffer("src", half * threads).data();
  std::byte* const dst = bench_buffer("dst", half * threads).data();
  const auto copy = [&](int t) {
    std::memcpy(dst + t * half, src + t * half, static_cast<std::size_t>(half));
  };
  const std::vector<Contender> contenders = {
      {"ours", half * threads, [&] { in_threads(threads, share); }},
      {"libc", half * threads, [&] { in_threads(threads, copy); }}};
  measure_by_turns(state, contenders, 1);
}

void BM_quantise(benchmark::State& state) {
  const QuantFormat format = *quant_format_from_name(kFormats[state.range(0)]);
  const Weights all = weights(format, state.range(1), state.range(2));
  state.SetLabel(kFormats[state.range(0)]);
  measure(state, all, [&](std::size_t i, Index begin, Index end) {
    quantise_rows(all.plain[i], all.small[i], begin, end, all.amax);
  });
}

void BM_dequantise(benchmark::State& state) {
  const QuantFormat format = *quant_format_from_name(kFormats[state.range(0)]);
  const Weights all = weights(format, state.range(1), state.range(2));
  for (std::size_t i = 0; i < all.plain.size(); ++i)
    quantise_rows(all.plain[i], all.small[i], 0, all.plain[i].rows, all.amax);
  state.SetLabel(kFormats[state.range(0)]);
  measure(state, all, [&](std::size_t i, Index begin, Index end) {
    dequantise_rows(all.small[i], all.plain[i], begin, end);
  });
}

void cases(benchmark::internal::Benchmark* b) {
  for (const Index format : {0, 1})
    for (const auto& [rows, cols] :
         {std::pair<Index, Index>{4096, 14336}, {2688, 1856}, {2880, 2880}})
      for (const Index threads : {1, 2}) b->Args({format, rows, cols, threads});
  for (Index format = 2; format < static_cast<Index>(std::size(kFormats)); ++format)
    b->Args({format, 4096, 14336, 1});
}

BENCHMARK(BM_quantise)
    ->Apply(cases)
    ->ArgNames({"format", "rows", "cols", "threads"})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_dequantise)
    ->Apply(cases)
    ->ArgNames({"format", "rows", "cols", "threads"})
    ->UseManualTime()
    ->Iterations(7)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace reshard
