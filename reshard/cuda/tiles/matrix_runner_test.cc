// SPDX-License-Identifier: Apache-2.0
// The kernels of quantised matrices against the reference, for all formats and dtypes.
#include "reshard/cuda/tiles/matrix_runner.h"

#include <gtest/gtest.h>

#include <cstring>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/transform/convert_arithmetic.h"
#include "reshard/transform/quantise_cases_testutil.h"

namespace reshard::cuda {
namespace {

/// A matrix on the GPU, as values in rows that are `gap` bytes apart and as data and scales.
struct OnGpu {
  OnGpu(const QuantFormat& f, DType dtype, Index rows, Index cols, Index gap)
      : format(f), values_row(cols * (dtype == DType::f32 ? 4 : 2) + gap) {
    stored = quant_bytes(f, rows, cols, std::byte{0xa5});
    const auto bytes = [&](std::size_t n) {
      return Buffer::on_device(gpu, static_cast<Index>(n)).value();
    };
    values = bytes(static_cast<std::size_t>(rows * values_row));
    data = bytes(stored.data.size());
    scales = bytes(stored.scales.size());
    factor = bytes(sizeof(float));
    amax = bytes(sizeof(float));
    plain = {values.data(), dtype, rows, cols, values_row};
    quant = view(f, rows, cols, stored);
    quant.data = data.data();
    quant.scales = scales.data();
    quant.factor = factor.data();
  }

  MatrixSlice whole() const {
    return {plain, quant, plain.rows, 0, reinterpret_cast<float*>(amax.data())};
  }
  /// Does the work twice; quantising finds the amax first.
  void run(MatrixWork work, int most_blocks = 0) {
    const Stream stream = Stream::make(gpu).value();
    std::vector<MatrixRunner> runners;
    for (const MatrixWork each : {MatrixWork::amax, work}) {
      MatrixTable table(each);
      ASSERT_EQ(error_of(table.add(whole())), "");
      table.end_level();
      auto runner = MatrixRunner::make(gpu, table, most_blocks);
      ASSERT_TRUE(runner) << runner.error().message;
      if (each == work || work == MatrixWork::quantise) runners.push_back(*std::move(runner));
    }
    for (int i = 0; i < 2; ++i)
      for (const MatrixRunner& runner : runners) ASSERT_EQ(error_of(runner.launch(stream, 0)), "");
    ASSERT_EQ(error_of(stream.synchronize()), "");
  }
  static std::string error_of(const Result<>& result) {
    return result ? "" : result.error().message;
  }

  void write_values(const FloatMatrix& from) {
    std::vector<std::byte> all(static_cast<std::size_t>(from.rows * values_row));
    const Index row = values_row_bytes();
    for (Index r = 0; r < from.rows; ++r)
      std::memcpy(all.data() + r * values_row, from.data + r * from.row_bytes,
                  static_cast<std::size_t>(row));
    write_to_gpu(gpu, values.data(), all);
  }
  Index values_row_bytes() const { return plain.cols * (plain.dtype == DType::f32 ? 4 : 2); }

  QuantBytes read_stored() {
    QuantBytes out = stored;
    out.data = read_from_gpu(gpu, data.data(), stored.data.size());
    out.scales = read_from_gpu(gpu, scales.data(), stored.scales.size());
    if (format.tensor_factor)
      std::memcpy(&out.factor, read_from_gpu(gpu, factor.data(), sizeof(float)).data(),
                  sizeof(float));
    return out;
  }

  std::shared_ptr<const Device> gpu = gpu_under_test();
  QuantFormat format;
  Index values_row;
  QuantBytes stored;
  Buffer values, data, scales, factor, amax;
  FloatMatrix plain;
  QuantMatrix quant;
};

const std::pair<Index, Index> kSizes[] = {{1, 2},    {5, 38},   {130, 66},
                                          {33, 300}, {2, 1030}, {260, 512}};

TEST(MatrixRunner, QuantisesAsTheReference) {
  std::uint64_t seed = 0;
  for (const QuantFormat& format : quant_formats())
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const auto& [rows, cols] : kSizes) {
        SCOPED_TRACE(to_string(format) + " of " + std::string(name(dtype)) + " [" +
                     std::to_string(rows) + ", " + std::to_string(cols) + "]");
        PlainMatrix plain(dtype, rows, cols, random_values(rows * cols, ++seed));
        OnGpu on(format, dtype, rows, cols, seed % 2 == 0 ? 0 : 12);
        on.write_values(plain.view());
        ASSERT_NO_FATAL_FAILURE(on.run(MatrixWork::quantise, static_cast<int>(seed % 3)));
        const QuantBytes want = reference_quantise(format, dtype, rows, cols, plain.values());
        ASSERT_TRUE(on.read_stored() == want);
      }
}

TEST(MatrixRunner, DequantisesAsTheHost) {
  std::uint64_t seed = 0;
  for (const QuantFormat& format : quant_formats())
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
      for (const auto& [rows, cols] : kSizes) {
        SCOPED_TRACE(to_string(format) + " to " + std::string(name(dtype)));
        PlainMatrix plain(dtype, rows, cols, random_values(rows * cols, ++seed));
        QuantBytes stored = reference_quantise(format, dtype, rows, cols, plain.values());
        dequantise_rows(view(format, rows, cols, stored), plain.view(), 0, rows);
        OnGpu on(format, dtype, rows, cols, seed % 2 == 0 ? 0 : 12);
        write_to_gpu(on.gpu, on.data.data(), stored.data);
        write_to_gpu(on.gpu, on.scales.data(), stored.scales);
        write_to_gpu(on.gpu, on.factor.data(), std::as_bytes(std::span(&stored.factor, 1)));
        ASSERT_NO_FATAL_FAILURE(on.run(MatrixWork::dequantise));
        const auto got =
            read_from_gpu(on.gpu, on.values.data(), static_cast<std::size_t>(rows * on.values_row));
        for (Index r = 0; r < rows; ++r)
          ASSERT_EQ(0, std::memcmp(got.data() + r * on.values_row,
                                   plain.view().data + r * plain.view().row_bytes,
                                   static_cast<std::size_t>(on.values_row_bytes())))
              << "row " << r;
      }
}

TEST(MatrixRunner, EveryHalfIsCastAsTheReferenceDoes) {
  for (const char* name : {"mxfp8", "nvfp4", "fp8_block", "fp8_tensor", "mxfp4"})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const QuantFormat format = *quant_format_from_name(name);
      std::vector<float> values;
      for (unsigned i = 0; i < 65536; ++i) {
        const auto half = static_cast<std::uint16_t>(i * 2049);
        values.push_back(dtype == DType::bf16 ? from_bf16(half) : from_f16(half));
      }
      PlainMatrix plain(dtype, 32, 2048, values);
      OnGpu on(format, dtype, 32, 2048, 0);
      on.write_values(plain.view());
      ASSERT_NO_FATAL_FAILURE(on.run(MatrixWork::quantise));
      ASSERT_TRUE(on.read_stored() == reference_quantise(format, dtype, 32, 2048, plain.values()))
          << name;
    }
}

TEST(MatrixTable, ManyMatricesAreOneLaunchOfTilesOfWholeBlocks) {
  OnGpu on(*quant_format_from_name("fp8_block"), DType::bf16, 1000, 1000, 0);
  MatrixTable table(MatrixWork::quantise);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(table.add(on.whole()));
  table.end_level();
  EXPECT_EQ(table.matrices().size(), 3U);
  for (const MatrixTile& tile : table.tiles()) {
    EXPECT_EQ(tile.first_row % 128, 0U);
    EXPECT_TRUE(tile.end_row % 128 == 0 || tile.end_row == 1000);
    EXPECT_LE(tile.end_block, 8U);
  }
  const auto runner = MatrixRunner::make(on.gpu, table);
  ASSERT_TRUE(runner);
  const Stream stream = Stream::make(on.gpu).value();
  emulated_gpu().calls.clear();
  EXPECT_TRUE(runner->launch(stream, 0));
  auto calls = emulated_gpu().calls;
  calls.erase("cuCtxPushCurrent");
  calls.erase("cuCtxPopCurrent");
  if (is_emulated()) {
    EXPECT_EQ(calls, (std::map<std::string, int>{{"cuLaunchKernel", 1}}));
  }
  EXPECT_TRUE(stream.synchronize());
}

}  // namespace
}  // namespace reshard::cuda
