// SPDX-License-Identifier: Apache-2.0
// Quantises and dequantises matrices of BF16 weights, in turn with plain copies that read and write
// as many bytes in total. Prints one line per number of threads.
//
//   quantise_bench --format mxfp8 --matrix 4096x14336 [--mib 512] [--threads 1,2] [--rounds N]
//
// Uses as many matrices as fill --mib mebibytes of BF16. Afterwards the first and the last one are
// quantised and dequantised with the plain C++ kernels, which must produce the same bytes.
#include <algorithm>
#include <cstring>

#include "bench/common/arguments.h"
#include "bench/common/plain_ways.h"
#include "reshard/base/hash.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/transform/quantise.h"
#include "reshard/transform/simd.h"

namespace reshard::bench {
namespace {

/// Rows are divided among threads in units that all named formats can be cut at.
constexpr Index kUnit = 128;

struct Weights {
  QuantFormat format;
  Index rows = 0, cols = 0, count = 0;
  HostBuffer numbers, data, scales, factors, back;
  float amax = 0;

  Index data_bytes() const { return rows * cols * bits(format.data) / 8; }
  Index one_scale_bytes() const { return scale_bytes(format, rows, cols); }
  Index bytes() const { return count * (rows * cols * 2 + data_bytes() + one_scale_bytes()); }

  FloatMatrix plain(HostBuffer& of, Index i) const {
    return {of.data() + i * rows * cols * 2, DType::bf16, rows, cols, cols * 2};
  }
  QuantMatrix small(std::byte* of_data, std::byte* of_scales, Index i) {
    return {.format = format,
            .data = of_data,
            .rows = rows,
            .cols = cols,
            .row_bytes = cols * bits(format.data) / 8,
            .scales = of_scales,
            .scale_row_bytes = scale_cols(format, cols) * bits(format.scale) / 8,
            .factor = factors.data() + 4 * i};
  }
  QuantMatrix small(Index i) {
    return small(data.data() + i * data_bytes(), scales.data() + i * one_scale_bytes(), i);
  }
};

/// Values like those of weights: sums of random numbers of both signs.
void fill(Weights& w) {
  const Index size = w.count * w.rows * w.cols;
  for (Index i = 0; i < size; ++i) {
    const std::uint64_t word = mix64(static_cast<std::uint64_t>(i));
    const int sum = static_cast<std::int16_t>(word) + static_cast<std::int16_t>(word >> 16) +
                    static_cast<std::int16_t>(word >> 32) + static_cast<std::int16_t>(word >> 48);
    const float value = static_cast<float>(sum) * 0x1p-20F;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    const auto half = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(w.numbers.data() + 2 * i, &half, sizeof half);
  }
  w.amax = amax({w.numbers.data(), DType::bf16, w.count * w.rows, w.cols, w.cols * 2});
}

Result<Weights> weights(Arguments& arguments) {
  const std::string name = arguments.text("format", "mxfp8");
  const auto format = quant_format_from_name(name);
  if (!format)
    return fail(Code::invalid_argument, "--format takes one of " + known_quant_formats());
  const auto sizes = RESHARD_TRY(arguments.integers("matrix", "", 'x'));
  const Index mib = RESHARD_TRY(arguments.integer("mib", 512));
  if (sizes.size() != 2 || sizes[0] < 1 || sizes[1] < 1 || mib > Index{1} << 20)
    return fail(Code::invalid_argument, "give --matrix ROWSxCOLUMNS and at most 2^20 --mib");
  RESHARD_TRY(check_quant_format(*format, sizes[0], sizes[1]));
  Weights w;
  w.format = *format;
  w.rows = sizes[0];
  w.cols = sizes[1];
  w.count = (mib << 20) / (w.rows * w.cols * 2) + 1;
  const HostBuffer::Options touched{.prefault_threads = 2};
  w.numbers = RESHARD_TRY(HostBuffer::allocate(w.count * w.rows * w.cols * 2, touched));
  w.back = RESHARD_TRY(HostBuffer::allocate(w.numbers.size(), touched));
  w.data = RESHARD_TRY(HostBuffer::allocate(w.count * w.data_bytes(), touched));
  w.scales = RESHARD_TRY(HostBuffer::allocate(w.count * w.one_scale_bytes(), touched));
  w.factors = RESHARD_TRY(HostBuffer::allocate(w.count * 4, touched));
  fill(w);
  return w;
}

/// Calls f(matrix, begin, end) for each worker's rows of every matrix.
template <class F>
void in_threads(const Weights& w, WorkerPool& pool, F f) {
  auto body = [&](int worker) {
    const Index units = (w.rows + kUnit - 1) / kUnit;
    const Index begin = units * worker / pool.size() * kUnit;
    const Index end = std::min(units * (worker + 1) / pool.size() * kUnit, w.rows);
    for (Index i = 0; i < w.count && begin < end; ++i) f(i, begin, end);
  };
  pool.run(body);
}

bool same(const std::byte* a, const std::byte* b, Index bytes) {
  return std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0;
}

/// Errors: bytes that differ from those of plain C++.
Result<> check(Weights& w, Index i) {
  const SimdLevel level = simd_level();
  HostBuffer data = RESHARD_TRY(HostBuffer::allocate(w.data_bytes()));
  HostBuffer scales = RESHARD_TRY(HostBuffer::allocate(w.one_scale_bytes()));
  HostBuffer back = RESHARD_TRY(HostBuffer::allocate(w.rows * w.cols * 2));
  const QuantMatrix mine = w.small(data.data(), scales.data(), i);
  set_simd_level(SimdLevel::portable);
  quantise_rows(w.plain(w.numbers, i), mine, 0, w.rows, w.amax);
  dequantise_rows(mine, w.plain(back, 0), 0, w.rows);
  set_simd_level(level);
  const QuantMatrix theirs = w.small(i);
  if (!same(theirs.data, data.data(), data.size()) ||
      !same(theirs.scales, scales.data(), scales.size()) ||
      !same(w.plain(w.back, i).data, back.data(), back.size())) {
    return fail(Code::corrupt, "matrix " + std::to_string(i) + " is not what plain C++ gives");
  }
  return {};
}

Result<> measure(Weights& w, Index threads, Index rounds) {
  WorkerPool pool(static_cast<int>(threads));
  // A copy both reads and writes, so half of the bytes cause the same traffic.
  const Index half = std::min(w.bytes() / 2, w.numbers.size());
  std::vector<Contender> contenders = plain_copies(pool, w.back.data(), w.numbers.data(), half);
  contenders.push_back({"quantise", [&]() -> Result<> {
                          in_threads(w, pool, [&](Index i, Index begin, Index end) {
                            quantise_rows(w.plain(w.numbers, i), w.small(i), begin, end, w.amax);
                          });
                          return {};
                        }});
  contenders.push_back({"dequantise", [&]() -> Result<> {
                          in_threads(w, pool, [&](Index i, Index begin, Index end) {
                            dequantise_rows(w.small(i), w.plain(w.back, i), begin, end);
                          });
                          return {};
                        }});
  const auto seconds = RESHARD_TRY(by_turns(contenders, Rounds(rounds)));
  RESHARD_TRY(check(w, 0));
  RESHARD_TRY(check(w, w.count - 1));
  JsonLine line;
  line.add("threads", threads);
  line.add("bytes", w.bytes());
  line.add("plain_bytes", half);
  line.add("simd", name(simd_level()));
  add_seconds(line, contenders, seconds);
  line.print();
  return {};
}

Result<> run(Arguments& arguments) {
  Weights w = RESHARD_TRY(weights(arguments));
  const auto threads = RESHARD_TRY(arguments.integers("threads", "1"));
  const Index rounds = RESHARD_TRY(arguments.integer("rounds", 7));
  RESHARD_TRY(arguments.unused());
  for (const Index n : threads) RESHARD_TRY(measure(w, n, rounds));
  return {};
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  return reshard::bench::run_program(argc, argv, reshard::bench::run);
}
