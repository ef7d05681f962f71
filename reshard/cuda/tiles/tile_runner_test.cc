// SPDX-License-Identifier: Apache-2.0
// The tile kernel against run_copies() on a host.
#include "reshard/cuda/tiles/tile_runner.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard::cuda {
namespace {

/// Source and target bytes in the device's memory, beginning at an address that is a multiple of 16
/// plus `source_place` or `target_place`.
struct Memory {
  Buffer source, target;
  std::byte *src = nullptr, *dst = nullptr;
};

Memory memory_of(const std::shared_ptr<const Device>& on, std::span<const std::byte> source,
                 std::span<const std::byte> target, Index source_place = 0,
                 Index target_place = 0) {
  Memory out;
  const auto place = [&](Buffer& buffer, std::span<const std::byte> bytes, Index at) {
    buffer = Buffer::on_device(on, static_cast<Index>(bytes.size()) + at).value();
    write_to_gpu(on, buffer.data() + at, bytes);
    return buffer.data() + at;
  };
  out.src = place(out.source, source, source_place);
  out.dst = place(out.target, target, target_place);
  return out;
}

/// Copies the tasks, whose addresses are offsets from null, on the host and on the device.
void expect_same(std::vector<CopyTask> tasks, Index source_bytes, Index target_bytes,
                 Index source_place = 0, Index target_place = 0) {
  const auto source = random_bytes(source_bytes, 1), before = random_bytes(target_bytes, 2);
  auto expected = before;
  for (CopyTask& task : tasks) {
    task.src = source.data();
    task.dst = expected.data();
  }
  run_copies(tasks, CopyHint::cached);

  const auto on = gpu_under_test();
  const Memory memory = memory_of(on, source, before, source_place, target_place);
  TileTable table;
  for (CopyTask& task : tasks) {
    task.src = memory.src;
    task.dst = memory.dst;
    RC_ASSERT(table.add(task).has_value());
  }
  table.end_level();
  const auto runner = TileRunner::make(on, table, *rc::gen::inRange(0, 3));
  RC_ASSERT(runner.has_value());
  const auto stream = Stream::make(on);
  RC_ASSERT(stream.has_value());
  RC_ASSERT(runner->launch(*stream).has_value());
  RC_ASSERT(stream->synchronize().has_value());
  RC_ASSERT(read_from_gpu(on, memory.dst, expected.size()) == expected);
}

RC_GTEST_PROP(TileRunner, RunsOfAnyLengthAlignmentAndPitchAreExact, ()) {
  CopyTask task;
  StridedCopy& copy = task.copy;
  copy.run_bytes = *rc::gen::oneOf(rc::gen::inRange<Index>(1, 70), rc::gen::inRange<Index>(60, 600),
                                   rc::gen::element<Index>(16, 192, 256, 4096, 300000));
  copy.num_loops = *rc::gen::inRange(0, 4);
  Index src = copy.run_bytes, dst = copy.run_bytes;
  for (int k = copy.num_loops - 1; k >= 0; --k) {
    const auto gap = rc::gen::element<Index>(0, 0, 1, 2, 16, 64, 192);
    const Index count = *rc::gen::inRange<Index>(1, copy.num_loops == 1 ? 40 : 4);
    src += *gap;
    dst += *gap;
    copy.loops[static_cast<std::size_t>(k)] = {count, src, dst};
    src *= count;
    dst *= count;
  }
  copy.src_offset = *rc::gen::element<Index>(0, 0, 1, 2, 4, 8, 16, 21);
  copy.dst_offset = *rc::gen::element<Index>(0, 0, 1, 2, 4, 8, 16, 21);
  const auto place = rc::gen::element<Index>(0, 0, 1, 6, 8);
  expect_same({task}, copy.src_offset + src, copy.dst_offset + dst + 30, *place, *place);
}

RC_GTEST_PROP(TileRunner, TransposedElementsAreExact, ()) {
  const Index element = *rc::gen::element<Index>(1, 2, 3, 4, 8, 12, 16, 32);
  const auto length =
      rc::gen::oneOf(rc::gen::inRange<Index>(1, 90), rc::gen::inRange<Index>(60, 300));
  const Index matrices = *rc::gen::inRange<Index>(1, 4), rows = *length, cols = *length;
  const auto gap = rc::gen::element<Index>(0, 0, 1, 2, 8);
  const Index src_row = cols + *gap, dst_col = rows + *gap;
  CopyTask task;
  task.copy = make_copy({matrices, rows, cols}, {*gap, Dims{rows * src_row, src_row, 1}},
                        {*gap, Dims{cols * dst_col, 1, dst_col}}, static_cast<int>(8 * element))
                  .value();
  const auto place = rc::gen::element<Index>(0, 0, 0, 1, 2, 8);
  expect_same({task}, (8 + matrices * rows * src_row) * element,
              (8 + matrices * cols * dst_col) * element, *place, *place);
}

/// Many copies, of a byte to some kilobytes each: the slices of one fill tiles with those of
/// others.
RC_GTEST_PROP(TileRunner, ManySmallCopiesAreExact, ()) {
  std::vector<CopyTask> tasks;
  Index src = 0, dst = 0;
  for (int i = *rc::gen::inRange(1, 200); i > 0; --i) {
    CopyTask task;
    task.copy.run_bytes =
        *rc::gen::oneOf(rc::gen::inRange<Index>(1, 40), rc::gen::inRange<Index>(1, 20000));
    task.copy.src_offset = src;
    task.copy.dst_offset = dst;
    src += task.copy.run_bytes + *rc::gen::inRange<Index>(0, 9);
    dst += task.copy.run_bytes + *rc::gen::inRange<Index>(0, 9);
    tasks.push_back(task);
  }
  expect_same(tasks, src, dst);
}

RC_GTEST_PROP(TileRunner, ConvertsValues, ()) {
  const auto form = [] {
    return StoredForm{*rc::gen::element(DType::bf16, DType::f16, DType::f32),
                      *rc::gen::element(ValueMap::identity, ValueMap::plus_one, ValueMap::minus_one,
                                        ValueMap::negated_exp)};
  };
  CopyTask task;
  task.conversion = {form(), form()};
  const int src_width = static_cast<int>(size_of(task.conversion.from.dtype, 1)),
            dst_width = static_cast<int>(size_of(task.conversion.to.dtype, 1));
  const Index rows = *rc::gen::inRange<Index>(1, 60), cols = *rc::gen::inRange<Index>(1, 600);
  const Index gap = *rc::gen::inRange<Index>(0, 5);
  task.copy = make_widening_copy({rows, cols}, {3, Dims{cols + gap, 1}}, {1, Dims{cols, 1}},
                                 src_width, dst_width);
  if (!task.conversion.converts()) task.copy.src_width = task.copy.dst_width = 1;
  expect_same({task}, (3 + rows * (cols + gap)) * src_width, (1 + rows * cols) * dst_width);
}

TEST(TileTable, UsesWideAccessesWhereAlignmentAllows) {
  const auto widths = [](Index from, Index to, Index run, Index src_row, Index dst_row) {
    CopyTask task;
    task.copy.run_bytes = run;
    task.copy.num_loops = 1;
    task.copy.loops[0] = {10, src_row, dst_row};
    task.src = reinterpret_cast<const std::byte*>(std::uintptr_t{4096});
    task.dst = reinterpret_cast<std::byte*>(std::uintptr_t{1 << 20});
    task.copy.src_offset = from;
    task.copy.dst_offset = to;
    TileTable table;
    EXPECT_TRUE(table.add(task));
    std::vector<int> out;
    for (const CopyPiece& piece : table.pieces()) out.push_back(1 << piece.log2_width);
    return out;
  };
  using Widths = std::vector<int>;
  EXPECT_EQ(widths(0, 0, 192, 1536, 192), Widths{16});
  EXPECT_EQ(widths(0, 8, 192, 1536, 192), Widths{8});
  EXPECT_EQ(widths(2, 2, 192, 1536, 192), Widths{2});
  // Only the ends of long runs are narrow.
  EXPECT_EQ(widths(2, 2, 1024, 1536, 1536), (Widths{2, 16, 2}));
  EXPECT_EQ(widths(0, 0, 1022, 1536, 1536), (Widths{16, 2}));
  EXPECT_EQ(widths(2, 4, 1024, 1536, 1536), Widths{2});
  EXPECT_EQ(widths(0, 0, 1024, 1537, 1536), Widths{1});
}

/// [rows, cols] of elements of `width` bytes to its transpose, between addresses that are multiples
/// of 16 plus `place`.
CopyTask transposed(Index rows, Index cols, Index width, std::uintptr_t place = 0) {
  CopyTask task;
  task.copy =
      make_copy({rows, cols}, {0, Dims{cols, 1}}, {0, Dims{1, rows}}, static_cast<int>(8 * width))
          .value();
  task.src = reinterpret_cast<const std::byte*>(std::uintptr_t{4096} + place);
  task.dst = reinterpret_cast<std::byte*>(std::uintptr_t{1 << 30} + place);
  return task;
}

TEST(TileTable, TransposesInSharedMemoryWhereThatGains) {
  const auto pieces = [](const CopyTask& task) {
    TileTable table;
    EXPECT_TRUE(table.add(task));
    table.end_level();
    EXPECT_EQ(table.levels().size(), 1U);
    EXPECT_EQ(table.tiles().empty(), !table.transposes().tiles().empty());
    const auto found = table.transposes().pieces();
    return std::vector<TransposePiece>(found.begin(), found.end());
  };
  for (const Index width : {1, 2, 4, 8, 16}) {
    ASSERT_EQ(pieces(transposed(1000, 512, width)).size(), 1U) << width;
    EXPECT_EQ(pieces(transposed(1000, 512, width))[0].wide_src, width < 8);
  }
  EXPECT_TRUE(pieces(transposed(1000, 512, 32)).empty());
  EXPECT_TRUE(pieces(transposed(1000, 512, 3)).empty());
  EXPECT_TRUE(pieces(transposed(1000, 7, 2)).empty());
  EXPECT_TRUE(pieces(transposed(1000, 512, 4, 2)).empty());
  const auto odd = pieces(transposed(1000, 511, 2, 2));
  ASSERT_EQ(odd.size(), 1U);
  EXPECT_FALSE(odd[0].wide_src);
  EXPECT_FALSE(odd[0].wide_dst);
}

TEST(TileRunner, LaunchesOnceMoreForWhatIsTransposed) {
  const auto on = gpu_under_test();
  const auto source = random_bytes(128 * 512, 1);
  const Memory memory = memory_of(on, source, random_bytes(128 * 512, 2));
  CopyTask turned = transposed(64, 256, 2), plain;
  turned.src = memory.src;
  turned.dst = memory.dst;
  plain.copy.run_bytes = 64;
  plain.src = memory.src;
  plain.dst = memory.dst + 64 * 512;
  TileTable table;
  ASSERT_TRUE(table.add(turned));
  ASSERT_TRUE(table.add(plain));
  table.end_level();
  ASSERT_TRUE(table.add(turned));
  table.end_level();
  const auto runner = TileRunner::make(on, table);
  ASSERT_TRUE(runner);
  EXPECT_EQ(runner->num_levels(), 2U);
  EXPECT_EQ(runner->num_launches(0), 2U);
  EXPECT_EQ(runner->num_launches(1), 1U);
}

TEST(TileTable, ConvertsEightValuesAtATimeWhereAlignmentAllows) {
  CopyTask task;
  task.conversion = {{DType::f32}, {DType::bf16}};
  task.copy = make_widening_copy({4, 64}, {0, Dims{80, 1}}, {0, Dims{64, 1}}, 4, 2);
  const auto kernels = [&](std::uintptr_t src, std::uintptr_t dst) {
    task.src = reinterpret_cast<const std::byte*>(src);
    task.dst = reinterpret_cast<std::byte*>(dst);
    TileTable table;
    EXPECT_TRUE(table.add(task));
    table.end_level();
    std::vector<std::string> names;
    for (const TileTable::Conversions& all : table.conversions()) names.push_back(all.kernel);
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(kernels(4096, 8192), Names{"reshard_convert_f32_bf16"});
  EXPECT_EQ(kernels(4096 + 16, 8192 + 16), Names{"reshard_convert_f32_bf16"});
  EXPECT_EQ(kernels(4096 + 4, 8192), Names{"reshard_convert"});
  EXPECT_EQ(kernels(4096, 8192 + 2), Names{"reshard_convert"});
}

TEST(TileRunner, LaunchesOnceForEachPairOfDtypes) {
  const auto on = gpu_under_test();
  const Memory memory = memory_of(on, random_bytes(4096, 1), random_bytes(4096, 2));
  TileTable table;
  Index at = 0;
  const auto add = [&](DType from, DType to, Index src_width, Index dst_width) {
    CopyTask task;
    task.conversion = {{from}, {to}};
    task.copy = make_widening_copy({16}, {0, Dims{1}}, {0, Dims{1}}, static_cast<int>(src_width),
                                   static_cast<int>(dst_width));
    task.src = memory.src + at;
    task.dst = memory.dst + at;
    at += 64;
    ASSERT_TRUE(table.add(task));
  };
  CopyTask plain;
  plain.copy.run_bytes = 64;
  plain.src = memory.src + 2048;
  plain.dst = memory.dst + 2048;
  add(DType::f32, DType::bf16, 4, 2);
  add(DType::f16, DType::bf16, 2, 2);
  ASSERT_TRUE(table.add(plain));
  add(DType::f32, DType::bf16, 4, 2);
  table.end_level();
  add(DType::f32, DType::bf16, 4, 2);
  table.end_level();
  const auto runner = TileRunner::make(on, table);
  ASSERT_TRUE(runner);
  EXPECT_EQ(runner->num_levels(), 2U);
  EXPECT_EQ(runner->num_launches(0), 3U);
  EXPECT_EQ(runner->num_launches(1), 1U);
}

TEST(TileTable, ATileHasAFewHundredSlicesAtMost) {
  TileTable table;
  CopyTask task;
  task.copy.run_bytes = 16;
  for (std::uintptr_t i = 0; i < 2000; ++i) {
    task.src = reinterpret_cast<const std::byte*>(4096 + 64 * i);
    task.dst = reinterpret_cast<std::byte*>(1048576 + 16 * i);
    ASSERT_TRUE(table.add(task));
  }
  table.end_level();
  EXPECT_EQ(table.slices().size(), 2000U);
  EXPECT_EQ(table.tiles().size(), 4U);
  for (const CopyTile& tile : table.tiles()) EXPECT_LE(tile.end - tile.first, 512U);
}

TEST(TileTable, CutsLargeCopiesIntoTilesOfEqualSize) {
  CopyTask task;
  task.copy.run_bytes = Index{40} << 30;
  TileTable table;
  ASSERT_TRUE(table.add(task));
  table.end_level();
  EXPECT_EQ(table.tiles().size(), (std::size_t{40} << 30) / TileTable::kTileBytes);
  Index bytes = 0;
  for (const CopySlice& slice : table.slices()) bytes += Index{slice.count} * 16;
  EXPECT_EQ(bytes, task.copy.run_bytes);
  EXPECT_EQ(table.bytes(), task.copy.run_bytes);
}

TEST(TileTable, CutsCopiesOfTooManyNarrowVectors) {
  CopyTask task;
  task.copy.run_bytes = Index{3} << 30;
  task.copy.num_loops = 2;
  task.copy.loops[0] = {1, 0, 0};
  task.copy.loops[1] = {2, (Index{3} << 30) + 1, Index{3} << 30};
  TileTable table;
  ASSERT_TRUE(table.add(task));
  Index bytes = 0;
  for (const CopyPiece& piece : table.pieces()) {
    Index vectors = piece.run.divisor;
    for (int l = 0; l < piece.num_loops; ++l)
      vectors *= table.loops()[piece.first_loop + static_cast<std::uint32_t>(l)].count.divisor;
    EXPECT_LT(vectors, Index{1} << 31);
    bytes += vectors << piece.log2_width;
  }
  EXPECT_EQ(bytes, Index{6} << 30);
}

TEST(TileTable, RefusesValuesThatAreNotAligned) {
  CopyTask task;
  task.conversion = {{DType::bf16, ValueMap::identity}, {DType::f32, ValueMap::identity}};
  task.copy = make_widening_copy({8}, {0, Dims{1}}, {0, Dims{1}}, 2, 4);
  task.copy.dst_offset = 2;
  TileTable table;
  const auto added = table.add(task);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, Code::unsupported);
}

TEST(TileRunner, LaunchesOncePerLevelAndAllocatesNothing) {
  const auto on = gpu_under_test();
  const Memory memory = memory_of(on, random_bytes(1 << 20, 1), random_bytes(2 << 20, 2));
  TileTable table;
  const auto add = [&](const std::byte* src, std::byte* dst, int n) {
    for (int i = 0; i < n; ++i) {
      CopyTask task;
      task.copy.run_bytes = 1024;
      task.copy.src_offset = task.copy.dst_offset = i * 1024;
      task.src = src;
      task.dst = dst;
      ASSERT_TRUE(table.add(task));
    }
    table.end_level();
  };
  add(memory.src, memory.dst, 1024);
  table.end_level();  // Empty: not launched.
  add(memory.dst, memory.dst + (1 << 20), 1024);
  const auto runner = TileRunner::make(on, table);
  ASSERT_TRUE(runner) << runner.error().message;
  EXPECT_EQ(runner->num_levels(), 2U);
  const auto stream = Stream::make(on);
  ASSERT_TRUE(stream);
  emulated_gpu().calls.clear();
  ASSERT_TRUE(runner->launch(*stream));
  auto calls = emulated_gpu().calls;
  calls.erase("cuCtxPushCurrent");
  calls.erase("cuCtxPopCurrent");
  if (is_emulated()) {
    EXPECT_EQ(calls, (std::map<std::string, int>{{"cuLaunchKernel", 2}}));
  }
  ASSERT_TRUE(stream->synchronize());
  // The second level read what the first wrote.
  EXPECT_EQ(read_from_gpu(on, memory.dst + (1 << 20), 1 << 20),
            read_from_gpu(on, memory.src, 1 << 20));
}

TEST(TileRunner, AnEmptyTableLaunchesNothing) {
  const auto on = gpu_under_test();
  const auto runner = TileRunner::make(on, TileTable());
  ASSERT_TRUE(runner);
  const auto stream = Stream::make(on);
  EXPECT_TRUE(runner->launch(*stream));
  EXPECT_EQ(runner->num_levels(), 0U);
}

}  // namespace
}  // namespace reshard::cuda
