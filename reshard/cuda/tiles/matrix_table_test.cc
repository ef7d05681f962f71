// SPDX-License-Identifier: Apache-2.0
// Tables refuse what a GPU cannot do; a launch makes no call but launches, and reports its faults.
#include "reshard/cuda/tiles/matrix_table.h"
#include "reshard/cuda/driver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/cuda/tiles/matrix_runner.h"

namespace reshard::cuda {
namespace {

constexpr Index kHuge = Index{1} << 31;

std::string error_of(const Result<>& result) { return result ? "" : result.error().message; }

std::byte* address(std::uintptr_t at) { return reinterpret_cast<std::byte*>(at); }

/// Rows [128, 256) of 300 that every work takes.
MatrixSlice good_slice(const char* format) {
  MatrixSlice s;
  s.values = {address(512), DType::bf16, 128, 64, 128};
  s.stored = {.format = *quant_format_from_name(format),
              .data = address(4096),
              .rows = 128,
              .cols = 64,
              .row_bytes = 64,
              .scales = address(8192),
              .scale_row_bytes = 8,
              .factor = address(64)};
  s.rows = 300;
  s.begin = 128;
  s.amax = reinterpret_cast<float*>(address(32));
  return s;
}

struct Refusal {
  const char* what;
  const char* format;
  MatrixWork work;
  Code code;
  std::function<void(MatrixSlice&)> spoil;
};

const std::vector<Refusal>& refusals() {
  using enum MatrixWork;
  constexpr Code kInvalid = Code::invalid_argument, kUnsupported = Code::unsupported;
  static const std::vector<Refusal> kAll = {
      {"values that are no floats", "mxfp8", amax, kInvalid,
       [](MatrixSlice& s) { s.values.dtype = DType::f8_e4m3; }},
      {"a negative row", "mxfp8", amax, kInvalid, [](MatrixSlice& s) { s.begin = -1; }},
      {"negative columns", "mxfp8", amax, kInvalid, [](MatrixSlice& s) { s.values.cols = -1; }},
      {"rows after the last", "mxfp8", quantise, kInvalid, [](MatrixSlice& s) { s.rows = 255; }},
      {"a begin that overflows", "mxfp8", amax, kInvalid,
       [](MatrixSlice& s) { s.begin = std::numeric_limits<Index>::max(); }},
      {"too many rows", "mxfp8", amax, kUnsupported,
       [](MatrixSlice& s) { s.values.rows = s.rows = kHuge, s.begin = 0; }},
      {"too many columns", "mxfp8", amax, kUnsupported,
       [](MatrixSlice& s) { s.values.cols = kHuge; }},
      {"a format without a kernel", "mxfp8", quantise, kInvalid,
       [](MatrixSlice& s) { s.stored.format.block_rows = -1; }},
      {"other rows of data", "mxfp8", quantise, kInvalid,
       [](MatrixSlice& s) { s.stored.rows = 127; }},
      {"a begin inside a block", "fp8_block", dequantise, kInvalid,
       [](MatrixSlice& s) { s.begin = 127; }},
      {"an end inside a block", "fp8_block", quantise, kInvalid,
       [](MatrixSlice& s) { s.values.rows = s.stored.rows = 127; }},
      {"an end inside a tile of scales", "mxfp8_swizzled", quantise, kInvalid,
       [](MatrixSlice& s) { s.values.rows = s.stored.rows = 64; }},
      {"part of blocks of whole columns", "mxfp8", dequantise, kInvalid,
       [](MatrixSlice& s) { s.stored.format.block_rows = 0; }},
      {"blocks of too many elements", "mxfp8", quantise, kUnsupported,
       [](MatrixSlice& s) {
         s.stored.format.block_rows = 0;
         s.rows = s.values.rows = s.stored.rows = Index{1} << 28;
         s.begin = 0;
       }},
      {"no amax to write", "mxfp8", amax, kInvalid, [](MatrixSlice& s) { s.amax = nullptr; }},
      {"no amax to read", "nvfp4", quantise, kInvalid, [](MatrixSlice& s) { s.amax = nullptr; }},
      {"odd values", "mxfp8", dequantise, kUnsupported, [](MatrixSlice& s) { s.values.data += 1; }},
      {"odd rows of values", "mxfp8", amax, kUnsupported,
       [](MatrixSlice& s) { s.values.row_bytes = 129; }},
      {"an odd amax", "mxfp8", amax, kUnsupported,
       [](MatrixSlice& s) { s.amax = reinterpret_cast<float*>(address(34)); }},
      {"odd scales", "fp8_group", quantise, kUnsupported,
       [](MatrixSlice& s) { s.stored.scales += 2; }},
      {"an odd factor", "nvfp4", dequantise, kUnsupported,
       [](MatrixSlice& s) { s.stored.factor += 1; }},
  };
  return kAll;
}

TEST(MatrixTable, RefusesWhatAGpuCannotDo) {
  for (const Refusal& refusal : refusals()) {
    MatrixTable table(refusal.work);
    MatrixSlice slice = good_slice(refusal.format);
    const auto good = table.add(slice);
    ASSERT_TRUE(good) << refusal.what << ": " << good.error().message;
    const std::size_t tiles = table.tiles().size();
    refusal.spoil(slice);
    const auto refused = table.add(slice);
    ASSERT_FALSE(refused) << refusal.what;
    EXPECT_EQ(refused.error().code, refusal.code) << refusal.what;
    EXPECT_EQ(table.tiles().size(), tiles) << refusal.what;
  }
}

TEST(MatrixTable, TakesSlicesThatNeedNoAmaxOrEndInsideABlock) {
  for (const char* format : {"mxfp8", "fp8_block", "mxfp8_swizzled"}) {
    MatrixSlice slice = good_slice(format);
    slice.amax = nullptr;
    EXPECT_TRUE(MatrixTable(MatrixWork::quantise).add(slice)) << format;
    slice.values.rows = slice.stored.rows = 77;
    EXPECT_TRUE(MatrixTable(MatrixWork::dequantise).add(slice)) << format;
  }
}

/// The kernel of one matrix of [128, cols] values, whose addresses begin at multiples of 512 bytes.
std::string kernel_of(const char* format, MatrixWork work, DType dtype, Index cols,
                      Index data_row = 0) {
  MatrixSlice s = good_slice(format);
  s.values = {address(512), dtype, 128, cols, cols * (dtype == DType::f32 ? 4 : 2)};
  s.stored.cols = cols;
  s.stored.row_bytes = data_row != 0 ? data_row : size_of(s.stored.format.data, cols);
  s.stored.scale_row_bytes = size_of(s.stored.format.scale, scale_cols(s.stored.format, cols));
  MatrixTable table(work);
  EXPECT_EQ(error_of(table.add(s)), "");
  table.end_level();
  return table.launches().size() == 1 ? table.launches()[0].kernel : "";
}

TEST(MatrixTable, ChoosesTheKernelByBlocksAndAlignment) {
  using enum MatrixWork;
  const auto bf16 = [](const char* format, Index cols, Index data_row = 0) {
    return kernel_of(format, quantise, DType::bf16, cols, data_row);
  };
  EXPECT_EQ(bf16("mxfp8", 2688), "reshard_quantise_vectors_bf16_e4m3");
  EXPECT_EQ(bf16("mxfp8_swizzled", 2688), "reshard_quantise_vectors_bf16_e4m3");
  EXPECT_EQ(bf16("nvfp4", 2688), "reshard_quantise_vectors_bf16_e2m1");
  EXPECT_EQ(bf16("fp8_tensor", 4096), "reshard_quantise_vectors_bf16_e4m3");
  EXPECT_EQ(bf16("fp8_block", 2880), "reshard_quantise_held_bf16_e4m3");
  EXPECT_EQ(bf16("fp8_channel", 4096), "reshard_quantise_held_bf16_e4m3");
  // A block too small or too large to hold; a row of data at an odd place; columns that are odd.
  EXPECT_EQ(bf16("fp8_channel", 1024), "reshard_quantise");
  EXPECT_EQ(bf16("fp8_channel", 32768), "reshard_quantise");
  EXPECT_EQ(bf16("mxfp8", 2688, 2689), "reshard_quantise");
  EXPECT_EQ(bf16("mxfp8", 2688, 2696), "reshard_quantise");
  EXPECT_EQ(bf16("fp8_block", 2881), "reshard_quantise");
  EXPECT_EQ(kernel_of("fp8_block", quantise, DType::f32, 4096), "reshard_quantise");
  EXPECT_EQ(kernel_of("mxfp8", quantise, DType::f32, 4096), "reshard_quantise_vectors_f32_e4m3");
  EXPECT_EQ(kernel_of("fp8_block", dequantise, DType::bf16, 2880),
            "reshard_dequantise_vectors_bf16_e4m3");
  EXPECT_EQ(kernel_of("fp8_block", dequantise, DType::bf16, 2888),
            "reshard_dequantise_vectors_bf16_e4m3");
  EXPECT_EQ(kernel_of("fp8_block", dequantise, DType::bf16, 2881), "reshard_dequantise");
  EXPECT_EQ(kernel_of("nvfp4", dequantise, DType::bf16, 2880),
            "reshard_dequantise_vectors_bf16_e2m1");
  EXPECT_EQ(kernel_of("mxfp8", amax, DType::f16, 2888), "reshard_amax");
}

TEST(MatrixTable, ALaunchTakesTheTilesOfOneKernel) {
  MatrixTable table(MatrixWork::quantise);
  MatrixSlice floats = good_slice("mxfp8");
  floats.values.dtype = DType::f32;
  floats.values.row_bytes = 256;
  for (int level = 0; level < 2; ++level) {
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(table.add(good_slice("mxfp8")));
      ASSERT_TRUE(table.add(floats));
    }
    table.end_level();
  }
  ASSERT_EQ(table.launches().size(), 4U);
  std::uint32_t next = 0;
  for (const MatrixTable::Launch& launch : table.launches()) {
    EXPECT_EQ(launch.first_tile, next);
    next = launch.end_tile;
    for (std::uint32_t i = launch.first_tile; i < launch.end_tile; ++i)
      EXPECT_EQ(kernel_name(MatrixWork::quantise, table.matrices()[table.tiles()[i].matrix]),
                launch.kernel);
  }
  EXPECT_EQ(next, table.tiles().size());
  EXPECT_EQ(table.levels()[1].first_launch, 2U);
  EXPECT_EQ(table.levels()[1].end_launch, 4U);
}

TEST(MaximumTable, RefusesWhatAGpuCannotDo) {
  MaximumTable table;
  auto* const floats = reinterpret_cast<float*>(address(64));
  auto* const odd = reinterpret_cast<float*>(address(66));
  EXPECT_TRUE(table.add(floats, 3, floats));
  EXPECT_EQ(table.add(floats, -1, floats).error().code, Code::invalid_argument);
  EXPECT_EQ(table.add(floats, kHuge, floats).error().code, Code::unsupported);
  EXPECT_EQ(table.add(odd, 1, floats).error().code, Code::unsupported);
  EXPECT_EQ(table.add(floats, 1, odd).error().code, Code::unsupported);
}

/// Floats on the GPU.
struct GpuFloats {
  explicit GpuFloats(const std::vector<float>& values)
      : buffer(Buffer::on_device(gpu, std::ssize(values) * 4).value()), size(values.size()) {
    write_to_gpu(gpu, buffer.data(), std::as_bytes(std::span(values)));
  }
  float* at(Index i) const { return reinterpret_cast<float*>(buffer.data()) + i; }
  float operator[](std::size_t i) const {
    const auto bytes = read_from_gpu(gpu, buffer.data(), size * 4);
    float value = 0;
    std::memcpy(&value, bytes.data() + i * 4, sizeof value);
    return value;
  }
  std::shared_ptr<const Device> gpu = gpu_under_test();
  Buffer buffer;
  std::size_t size;
};

TEST(MaximumRunner, FindsTheLargestOrNan) {
  const float infinity = bits_float(kFloatInfinity), nan = bits_float(kFloatNan);
  std::vector<float> many(5000, 0.25F);
  many[4999] = 3;
  const std::vector<std::pair<std::vector<float>, float>> cases = {
      {{}, 0.0F},
      {{0.0F}, 0.0F},
      {{1, 3, 2}, 3.0F},
      {{-5, -0.0F}, 0.0F},
      {{1e-45F, 0}, 1e-45F},
      {{1, infinity, 2, 3}, infinity},
      {{infinity, nan}, nan},
      {{-nan, 1, 2, 3, 4, 5}, nan},
      {{1, 2, 3, 4, 5, 6, 7, 8, nan}, nan},
      {many, 3.0F}};
  for (const auto& [values, want] : cases) {
    std::vector<float> all = values;
    all.push_back(-1);  // Where the maximum is written.
    all.push_back(9);
    const GpuFloats floats(all);
    const Index n = std::ssize(values);
    MaximumTable table;
    ASSERT_TRUE(table.add(floats.at(0), n, floats.at(n)));
    table.end_level();
    const auto runner = MaximumRunner::make(floats.gpu, table);
    ASSERT_TRUE(runner);
    const Stream stream = Stream::make(floats.gpu).value();
    ASSERT_TRUE(runner->launch(stream, 0));
    ASSERT_TRUE(stream.synchronize());
    const float found = floats[values.size()];
    if (is_nan_bits(float_bits(want))) {
      EXPECT_TRUE(is_nan_bits(float_bits(found)));
    } else {
      EXPECT_EQ(float_bits(found), float_bits(want));
    }
    EXPECT_EQ(floats[values.size() + 1], 9);
  }
}

/// A matrix on the GPU, for all kinds of work.
struct OnGpu {
  explicit OnGpu(const char* format) : slice(good_slice(format)) {
    slice.values.data = memory.data();
    slice.stored.data = memory.data() + 65536;
    slice.stored.scales = memory.data() + 131072;
    slice.stored.factor = memory.data() + 196608;
    slice.amax = reinterpret_cast<float*>(memory.data() + 196864);
  }
  MatrixTable table(MatrixWork work) const {
    MatrixTable out(work);
    EXPECT_TRUE(out.add(slice));
    out.end_level();
    out.end_level();
    return out;
  }
  std::shared_ptr<const Device> gpu = gpu_under_test();
  Buffer memory = Buffer::on_device(gpu, Index{1} << 18).value();
  MatrixSlice slice;
};

/// The calls of f() by name, without those that any call makes.
template <class F>
std::map<std::string, int> calls_of(F&& f) {
  emulated_gpu().calls.clear();
  f();
  std::map<std::string, int> calls = emulated_gpu().calls;
  calls.erase("cuCtxPushCurrent");
  calls.erase("cuCtxPopCurrent");
  return calls;
}

TEST(MatrixRunner, ALaunchOfALevelMakesNoOtherCall) {
  if (!is_emulated()) GTEST_SKIP();
  const OnGpu on("nvfp4");
  const Stream stream = Stream::make(on.gpu).value();
  for (const MatrixWork work : {MatrixWork::amax, MatrixWork::quantise, MatrixWork::dequantise}) {
    const auto runner = MatrixRunner::make(on.gpu, on.table(work));
    ASSERT_TRUE(runner);
    ASSERT_EQ(runner->num_levels(), 2U);
    const int launches = work == MatrixWork::amax ? 2 : 1;
    EXPECT_EQ(calls_of([&] { EXPECT_TRUE(runner->launch(stream, 0)); }),
              (std::map<std::string, int>{{"cuLaunchKernel", launches}}));
    EXPECT_TRUE(calls_of([&] { EXPECT_TRUE(runner->launch(stream, 1)); }).empty());
    EXPECT_TRUE(stream.synchronize());
  }
}

TEST(MatrixRunner, FaultsOfTheDriverAreErrors) {
  if (!is_emulated()) GTEST_SKIP();
  const OnGpu on("nvfp4");
  const Stream stream = Stream::make(on.gpu).value();
  for (const MatrixWork work : {MatrixWork::amax, MatrixWork::quantise}) {
    const MatrixTable table = on.table(work);
    for (const char* call : {"cuMemAlloc", "cuMemcpyAsync", "cuStreamSynchronize", "cuStreamCreate",
                             "cuModuleGetFunction"}) {
      emulated_gpu().faults[call] = kOutOfMemory;
      const auto runner = MatrixRunner::make(on.gpu, table);
      ASSERT_FALSE(runner) << call;
      EXPECT_NE(runner.error().message.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << call;
      EXPECT_TRUE(emulated_gpu().faults.empty()) << call;
    }
    const auto runner = MatrixRunner::make(on.gpu, table);
    ASSERT_TRUE(runner);
    emulated_gpu().faults["cuLaunchKernel"] = kOutOfMemory;
    EXPECT_FALSE(runner->launch(stream, 0));
    EXPECT_TRUE(runner->launch(stream, 0));
    EXPECT_TRUE(stream.synchronize());
  }
  MaximumTable maxima;
  ASSERT_TRUE(maxima.add(on.slice.amax, 1, on.slice.amax));
  maxima.end_level();
  emulated_gpu().faults["cuMemAlloc"] = kOutOfMemory;
  EXPECT_FALSE(MaximumRunner::make(on.gpu, maxima));
  const auto runner = MaximumRunner::make(on.gpu, maxima);
  ASSERT_TRUE(runner);
  emulated_gpu().faults["cuLaunchKernel"] = kOutOfMemory;
  EXPECT_FALSE(runner->launch(stream, 0));
}

TEST(MatrixRunner, TablesWithoutWorkNeedNoKernel) {
  MatrixTable table(MatrixWork::quantise);
  table.end_level();
  const auto gpu = gpu_under_test();
  const Stream stream = Stream::make(gpu).value();
  const auto runner = MatrixRunner::make(gpu, table);
  ASSERT_TRUE(runner);
  EXPECT_TRUE(runner->launch(stream, 0));
  const auto maxima = MaximumRunner::make(gpu, MaximumTable());
  ASSERT_TRUE(maxima);
  EXPECT_EQ(maxima->num_levels(), 0U);
}

}  // namespace
}  // namespace reshard::cuda
