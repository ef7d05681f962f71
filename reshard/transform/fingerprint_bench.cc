// SPDX-License-Identifier: Apache-2.0
// Fingerprints of 512 MiB of tensors, in turn with a read-only pass over the same bytes. "ratio"
// compares with the read-only pass.
#include <cstdio>
#include <cstdlib>

#include "reshard/transform/bench_reference_testutil.h"
#include "reshard/transform/fingerprint.h"
#include "reshard/transform/fingerprint_key.h"
#include "reshard/transform/simd.h"

namespace reshard {
namespace {

constexpr Index kBytes = Index{512} << 20;

/// Fingerprints the first `columns` columns of tensors of this shape, one after the other.
void measure(benchmark::State& state, DType dtype, const Dims& shape, Index columns,
             bool transposed) {
  const std::byte* const src = bench_buffer("src", kBytes).data();
  const Index tensor_bytes = *bytes_of(dtype, volume(shape)), tensors = kBytes / tensor_bytes;
  const auto key = *FingerprintKey::make("model.layers.0.mlp.down_proj.weight", shape, dtype);
  const Box box = Box::whole(shape).with(shape.size() - 1, Interval{0, columns});
  Strided where{0, row_major(shape)};
  if (transposed) where.strides = Dims{1, shape[0]};
  const auto ours = [&] {
    for (Index i = 0; i < tensors; ++i) {
      const auto f = fingerprint(key, box, where, src + i * tensor_bytes);
      if (!f) std::abort();
      benchmark::DoNotOptimize(f->lane[0]);
    }
  };
  const auto read = [&] { benchmark::DoNotOptimize(read_only_pass(src, kBytes)); };
  measure_by_turns(
      state, {{"ours", *bytes_of(dtype, box.volume()) * tensors, ours}, {"read", kBytes, read}}, 1);
}

void BM_fingerprint(benchmark::State& state, DType dtype, Dims shape) {
  measure(state, dtype, shape, shape[shape.size() - 1], false);
}
void BM_fingerprint_columns(benchmark::State& state, DType dtype, Dims shape, Index columns) {
  measure(state, dtype, shape, columns, false);
}
void BM_fingerprint_transposed(benchmark::State& state, DType dtype, Dims shape) {
  measure(state, dtype, shape, shape[1], true);
}
void BM_fingerprint_level(benchmark::State& state, SimdLevel level) {
  const SimdLevel before = simd_level();
  if (set_simd_level(level) == level) {
    measure(state, DType::bf16, Dims{2048, 4096}, 4096, false);
  } else {
    state.SkipWithError("not on this machine");
  }
  set_simd_level(before);
}

#define RESHARD_FINGERPRINT_BENCH(...) \
  BENCHMARK_CAPTURE(__VA_ARGS__)->UseManualTime()->Iterations(7)->Unit(benchmark::kMillisecond)
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, bf16_2048x4096, DType::bf16, Dims{2048, 4096});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, bf16_2048x768, DType::bf16, Dims{2048, 768});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, bf16_4096x14336, DType::bf16, Dims{4096, 14336});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, bf16_4096x96, DType::bf16, Dims{4096, 96});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, bf16_4096x4, DType::bf16, Dims{4096, 4});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, bf16_4096, DType::bf16, Dims{4096});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, f32_2048x4096, DType::f32, Dims{2048, 4096});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, f8_2048x4096, DType::f8_e4m3, Dims{2048, 4096});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint, f8_2048x1001, DType::f8_e4m3, Dims{2048, 1001});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint_columns, bf16_96_of_768, DType::bf16, Dims{2048, 768}, 96);
RESHARD_FINGERPRINT_BENCH(BM_fingerprint_columns, bf16_2048_of_4096, DType::bf16, Dims{2048, 4096},
                          2048);
RESHARD_FINGERPRINT_BENCH(BM_fingerprint_transposed, bf16_4096x4096, DType::bf16, Dims{4096, 4096});
RESHARD_FINGERPRINT_BENCH(BM_fingerprint_level, avx2, SimdLevel::avx2);
RESHARD_FINGERPRINT_BENCH(BM_fingerprint_level, portable, SimdLevel::portable);

}  // namespace
}  // namespace reshard
