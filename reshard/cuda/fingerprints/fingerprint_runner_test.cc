// SPDX-License-Identifier: Apache-2.0
// Protects: a GPU's fingerprint of any box, stored anyhow, is fingerprint()'s on a host.
#include "reshard/cuda/fingerprints/fingerprint_runner.h"
#include "reshard/transform/fingerprint_key.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/transform/convert.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard::cuda {
namespace {

/// A box of a tensor in a local tensor with random bytes.
struct Stored {
  FingerprintKey key;
  Box box;
  Strided where;
  Conversion conversion;
  std::vector<std::byte> bytes;  ///< of the local tensor.
  std::size_t place = 0;  ///< of the local tensor, after an address that is a multiple of 16.

  Result<Fingerprint> on_host() const {
    if (!conversion.converts()) return fingerprint(key, box, where, bytes.data());
    const Index from = size_of(conversion.from.dtype, 1), to = size_of(conversion.to.dtype, 1);
    const Strided packed{0, row_major(box.shape())};
    std::vector<std::byte> converted(static_cast<std::size_t>(box.volume() * to));
    run_conversion(make_widening_copy(box.shape(), where, packed, static_cast<int>(from),
                                      static_cast<int>(to)),
                   conversion, bytes.data(), converted.data());
    return fingerprint(key, box, packed, converted.data());
  }
};

/// Bytes of each access to a piece.
Index access_bytes(const FingerprintPiece& piece) {
  const Index value = size_of(piece.conversion.from.dtype, 1);
  switch (piece.read_by) {
    case ReadBy::value: return value;
    case ReadBy::values4: return 4 * value;
    case ReadBy::element:
      return piece.conversion.converts() ? value : Index{1} << piece.log2_alignment;
    case ReadBy::elements4: return 4 * piece.element_bytes;
    default: return Index{1} << static_cast<int>(piece.read_by);
  }
}

/// True if all accesses are aligned to their size, as a GPU needs them and a host does not.
bool is_aligned(const FingerprintTable& table) {
  return std::ranges::all_of(table.pieces(), [&](const FingerprintPiece& piece) {
    const Index bytes = access_bytes(piece);
    const bool four = piece.read_by == ReadBy::elements4;
    bool aligned =
        reinterpret_cast<std::uintptr_t>(piece.src) % static_cast<std::size_t>(bytes) == 0;
    if (four || piece.read_by == ReadBy::element) aligned &= piece.column_stride % bytes == 0;
    for (std::uint32_t l = 0; l < piece.num_loops; ++l) {
      const CopyLoop& loop = table.loops()[piece.first_loop + l];
      // Four rows of the innermost loop are one access.
      const bool inner = four && l + 1 == piece.num_loops;
      aligned &= inner ? loop.src_stride == piece.element_bytes && loop.count.divisor % 4 == 0
                       : loop.src_stride % bytes == 0 || loop.count.divisor == 1;
    }
    return aligned;
  });
}

/// The boxes in the memory of a GPU, and a table of them, each with a sum of its own.
struct OnGpu {
  std::shared_ptr<const Device> gpu = gpu_under_test();
  std::vector<Buffer> memory;
  FingerprintTable table;

  Result<> add(const Stored& stored, Index sum) {
    memory.push_back(RESHARD_TRY(
        Buffer::on_device(gpu, static_cast<Index>(stored.bytes.size() + stored.place) + 1)));
    std::byte* const data = memory.back().data() + stored.place;
    write_to_gpu(gpu, data, stored.bytes);
    return table.add({&stored.key, stored.box, stored.where, data, stored.conversion}, sum);
  }
  Result<std::vector<Fingerprint>> sums(int most_blocks = 0) {
    table.end();
    const auto runner = RESHARD_TRY(FingerprintRunner::make(gpu, table, most_blocks));
    const Stream stream = RESHARD_TRY(Stream::make(gpu));
    RESHARD_TRY(runner.launch(stream));
    RESHARD_TRY(stream.synchronize());
    return std::vector<Fingerprint>(runner.sums().begin(), runner.sums().end());
  }
};

/// Stores a box with dimensions in any order of strides, with gaps between them.
Stored stored_anyhow(FingerprintKey key, const Box& box, int bits, const Conversion& conversion) {
  std::vector<int> order(static_cast<std::size_t>(box.rank()));
  std::iota(order.begin(), order.end(), 0);
  const bool whole = bits >= 8;
  if (whole && *rc::gen::inRange(0, 3) == 0) std::reverse(order.begin(), order.end());
  if (whole && *rc::gen::inRange(0, 4) == 0) std::swap(order.front(), order.back());
  Strided where{0, Dims::filled(box.rank(), 0)};
  // Of 4- and 6-bit elements, multiples of 4 are whole bytes.
  Index stride = whole ? *rc::gen::element<Index>(1, 1, 1, 1, 3) : 1;
  const Index step = whole ? 1 : 4;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    where.strides[*d] = stride;
    stride = stride * box[*d].size() + step * *rc::gen::element<Index>(0, 0, 0, 1, 4, 8, 16);
  }
  where.offset = step * *rc::gen::element<Index>(0, 0, 0, 1, 2, 8);
  Stored out{std::move(key), box, where, conversion, {}, 0};
  out.bytes = random_bytes((where.offset + stride) * bits / 8 + 8, 3);
  return out;
}

Box any_box(const Dims& shape, bool whole_bytes) {
  Box box = Box::whole(shape);
  for (int d = 0; d < shape.size(); ++d) {
    if (*rc::gen::arbitrary<bool>()) continue;
    const Index step = whole_bytes || d + 1 < shape.size() ? 1 : 4;
    const Index begin = *rc::gen::inRange<Index>(0, shape[d] / step);
    const Index end = *rc::gen::inRange<Index>(begin + 1, shape[d] / step + 1);
    box = box.with(d, {begin * step, end * step});
  }
  return box;
}

/// Shapes of up to four dimensions, the last one sometimes longer than some parts.
Dims any_shape() {
  Dims shape;
  const int rank = *rc::gen::inRange(1, 5);
  for (int i = 0; i + 1 < rank; ++i) shape.push_back(*rc::gen::inRange<Index>(1, 10));
  if (*rc::gen::inRange(0, 3) == 0) {
    if (rank > 1) shape[rank - 2] = *rc::gen::element<Index>(513, 520, 700);
    shape.push_back(4 * *rc::gen::inRange<Index>(1, 20));
  } else {
    shape.push_back(4 * *rc::gen::oneOf(rc::gen::inRange<Index>(1, 60),
                                        rc::gen::element<Index>(96, 336, 1030, 4096, 9000)));
  }
  return shape;
}

RC_GTEST_PROP(FingerprintRunner, equals_the_host_for_any_box_stored_anyhow, ()) {
  constexpr DType kDTypes[] = {DType::u8,  DType::f8_e4m3, DType::bf16,   DType::f32,
                               DType::f64, DType::f4,      DType::f6_e2m3};
  const DType dtype = *rc::gen::elementOf(std::vector(std::begin(kDTypes), std::end(kDTypes)));
  Dims shape = any_shape();
  if (bits(dtype) == 8 && *rc::gen::arbitrary<bool>()) shape[shape.size() - 1] -= 3;  // Odd rows.
  Stored stored = stored_anyhow(*FingerprintKey::make("t", shape, dtype),
                                any_box(shape, bits(dtype) >= 8), bits(dtype), {});
  stored.place = *rc::gen::element<std::size_t>(0, 0, 0, 1, 2, 4, 8, 12);
  OnGpu on;
  RC_ASSERT(on.add(stored, 0).has_value());
  RC_ASSERT(is_aligned(on.table));
  const auto sums = on.sums(*rc::gen::inRange(0, 4));
  RC_ASSERT(sums.has_value());
  RC_ASSERT(sums->at(0) == *stored.on_host());
}

RC_GTEST_PROP(FingerprintRunner, converts_values_as_the_host_does, ()) {
  const auto form = [] {
    return StoredForm{*rc::gen::element(DType::bf16, DType::f16, DType::f32),
                      *rc::gen::element(ValueMap::identity, ValueMap::identity, ValueMap::plus_one,
                                        ValueMap::minus_one, ValueMap::negated_exp)};
  };
  const Conversion conversion{form(), form()};
  RC_PRE(conversion.converts());
  const Dims shape = any_shape();
  Stored stored = stored_anyhow(*FingerprintKey::make("t", shape, conversion.to.dtype),
                                any_box(shape, true), bits(conversion.from.dtype), conversion);
  stored.place = static_cast<std::size_t>(size_of(conversion.from.dtype, 1)) *
                 *rc::gen::element<std::size_t>(0, 0, 1, 2);
  OnGpu on;
  RC_ASSERT(on.add(stored, 0).has_value());
  RC_ASSERT(is_aligned(on.table));
  const auto sums = on.sums();
  RC_ASSERT(sums.has_value());
  RC_ASSERT(sums->at(0) == *stored.on_host());
}

RC_GTEST_PROP(FingerprintRunner, many_boxes_add_up_to_the_tensors_that_they_cover, ()) {
  const int tensors = *rc::gen::inRange(1, 6);
  OnGpu on;
  std::vector<Fingerprint> expected;
  for (int t = 0; t < tensors; ++t) {
    const Dims shape{*rc::gen::inRange<Index>(1, 40), *rc::gen::inRange<Index>(1, 700)};
    const auto key = *FingerprintKey::make(std::to_string(t), shape, DType::bf16);
    const Index cut = *rc::gen::inRange<Index>(0, shape[0] + 1);
    expected.emplace_back();
    for (const Interval rows : {Interval{0, cut}, Interval{cut, shape[0]}}) {
      const Box box = Box::whole(shape).with(0, rows);
      if (box.empty()) continue;
      const Stored part = stored_anyhow(key, box, 16, {});
      expected.back() += *part.on_host();
      RC_ASSERT(on.add(part, t).has_value());
    }
  }
  const auto sums = on.sums(*rc::gen::inRange(0, 3));
  RC_ASSERT(sums.has_value());
  RC_ASSERT(*sums == expected);
}

/// A whole contiguous tensor.
Stored whole(const Dims& shape, DType dtype) {
  return {*FingerprintKey::make("t", shape, dtype),
          Box::whole(shape),
          {0, row_major(shape)},
          {},
          random_bytes(*bytes_of(dtype, volume(shape)), 1),
          0};
}

TEST(FingerprintRunner, launches_once_whatever_the_number_of_tensors) {
  OnGpu on;
  for (Index t = 0; t < 200; ++t) ASSERT_TRUE(on.add(whole({3, t % 7 + 1, 40}, DType::bf16), t));
  on.table.end();
  const auto runner = FingerprintRunner::make(on.gpu, on.table);
  ASSERT_TRUE(runner) << runner.error().message;
  const auto stream = Stream::make(on.gpu);
  ASSERT_TRUE(stream);
  for (int i = 0; i < 2; ++i) {
    emulated_gpu().calls.clear();
    ASSERT_TRUE(runner->launch(*stream));
    auto calls = emulated_gpu().calls;
    calls.erase("cuCtxPushCurrent");
    calls.erase("cuCtxPopCurrent");
    if (is_emulated()) {
      EXPECT_EQ(calls, (std::map<std::string, int>{
                           {"cuMemsetD8Async", 1}, {"cuLaunchKernel", 1}, {"cuMemcpyAsync", 1}}));
    }
    ASSERT_TRUE(stream->synchronize());
    ASSERT_EQ(runner->sums().size(), 200U);
    for (Index t = 0; t < 200; ++t)
      EXPECT_EQ(runner->sums()[static_cast<std::size_t>(t)],
                *whole({3, t % 7 + 1, 40}, DType::bf16).on_host());
  }
}

TEST(FingerprintRunner, elements_at_odd_addresses_are_exact) {
  for (std::size_t place = 0; place < 16; ++place) {
    OnGpu on;
    Stored stored = whole({5, 400}, DType::bf16);
    stored.place = place;
    ASSERT_TRUE(on.add(stored, 0));
    EXPECT_EQ(on.sums()->at(0), *stored.on_host()) << place;
  }
}

TEST(FingerprintRunner, of_nothing_is_zero) {
  OnGpu on;
  ASSERT_TRUE(on.sums()->empty());
  ASSERT_TRUE(on.add(whole({0, 4}, DType::bf16), 2));
  EXPECT_EQ(*on.sums(), std::vector<Fingerprint>(3));
}

TEST(FingerprintRunner, memory_that_is_short_and_failed_calls_are_errors) {
  if (!is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  OnGpu on;
  ASSERT_TRUE(on.add(whole({8, 64}, DType::f32), 0));
  for (const char* name : {"cuMemAlloc", "cuMemHostAlloc", "cuModuleLoadData", "cuMemcpyAsync",
                           "cuMemsetD8Async", "cuLaunchKernel"}) {
    const int open = emulated_gpu().num_open();
    emulated_gpu().faults[name] = kOutOfMemory;
    const auto sums = on.sums();
    ASSERT_FALSE(sums) << name;
    EXPECT_NE(sums.error().message.find(name), std::string::npos) << sums.error().message;
    EXPECT_TRUE(emulated_gpu().faults.empty()) << name;
    EXPECT_LE(emulated_gpu().num_open(), open + 1) << name;  // The module that the device keeps.
  }
  EXPECT_TRUE(on.sums());
}

/// How the pieces of a box are read, and how many columns of one row each reads.
struct Reads {
  ReadBy by;
  std::uint32_t columns;
  friend bool operator==(const Reads&, const Reads&) = default;
};
std::vector<Reads> reads_of(const Dims& shape, DType dtype, const Box& box, const Strided& where,
                            const Conversion& conversion = {}, std::uintptr_t address = 4096) {
  const auto key = *FingerprintKey::make("t", shape, dtype);
  FingerprintTable table;
  EXPECT_TRUE(
      table.add({&key, box, where, reinterpret_cast<const std::byte*>(address), conversion}, 0));
  std::vector<Reads> out;
  for (const FingerprintPiece& piece : table.pieces())
    out.push_back({piece.read_by, piece.columns.divisor});
  return out;
}
std::vector<Reads> reads_of(const Dims& shape, DType dtype, std::uintptr_t address = 4096) {
  return reads_of(shape, dtype, Box::whole(shape), {0, row_major(shape)}, {}, address);
}

TEST(FingerprintTable, reads_as_widely_as_alignment_allows) {
  using All = std::vector<Reads>;
  EXPECT_EQ(reads_of({64, 4096}, DType::bf16), (All{{ReadBy::bytes16, 512}}));
  EXPECT_EQ(reads_of({64, 96}, DType::bf16), (All{{ReadBy::bytes16, 12}}));
  EXPECT_EQ(reads_of({64, 92}, DType::bf16), (All{{ReadBy::bytes8, 23}}));
  EXPECT_EQ(reads_of({64, 4096}, DType::f4), (All{{ReadBy::bytes16, 128}}));
  // Rows of two parts, and of one and a half.
  EXPECT_EQ(reads_of({64, 16384}, DType::bf16), (All{{ReadBy::bytes16, 1024}}));
  EXPECT_EQ(reads_of({64, 12288}, DType::bf16),
            (All{{ReadBy::bytes16, 1024}, {ReadBy::bytes16, 512}}));
  // Slices of columns.
  EXPECT_EQ(reads_of({64, 768}, DType::bf16, Box{{0, 64}, {96, 192}}, {0, {768, 1}}),
            (All{{ReadBy::bytes16, 12}}));
  EXPECT_EQ(reads_of({64, 768}, DType::bf16, Box{{0, 64}, {98, 194}}, {0, {96, 1}}),
            (All{{ReadBy::bytes16, 12}}));
  // Columns that begin inside a word, and are stored at a whole word.
  EXPECT_EQ(reads_of({64, 768}, DType::bf16, Box{{0, 64}, {97, 193}}, {0, {96, 1}}),
            (All{{ReadBy::bytes2, 96}}));
  // Only the ends of long rows are narrow.
  EXPECT_EQ(reads_of({64, 768}, DType::bf16, Box{{0, 64}, {2, 766}}, {2, {768, 1}}),
            (All{{ReadBy::bytes4, 3}, {ReadBy::bytes16, 94}, {ReadBy::bytes4, 3}}));
  EXPECT_EQ(reads_of({4, 1024}, DType::u8, 4097), (All{{ReadBy::bytes1, 1024}}));
  EXPECT_EQ(reads_of({64, 1001}, DType::u8), (All{{ReadBy::bytes1, 1001}}));
}

TEST(FingerprintTable, reads_transposed_elements_along_what_is_contiguous) {
  using All = std::vector<Reads>;
  const auto transposed = [](Index rows, Index columns, DType dtype) {
    return reads_of({rows, columns}, dtype, Box::whole({rows, columns}), {0, {1, rows}});
  };
  EXPECT_EQ(transposed(512, 128, DType::bf16),
            (All{{ReadBy::elements4, 64}, {ReadBy::elements4, 64}}));
  EXPECT_EQ(transposed(512, 60, DType::u8), (All{{ReadBy::elements4, 60}}));
  EXPECT_EQ(transposed(512, 60, DType::f32), (All{{ReadBy::elements4, 60}}));
  EXPECT_EQ(transposed(512, 60, DType::f64), (All{{ReadBy::element, 60}}));
  EXPECT_EQ(transposed(511, 60, DType::bf16), (All{{ReadBy::element, 60}}));
  // The last rows of a matrix with a pitch.
  EXPECT_EQ(reads_of({6, 60}, DType::bf16, Box::whole({6, 60}), {0, {1, 8}}),
            (All{{ReadBy::elements4, 60}, {ReadBy::element, 60}}));
}

TEST(FingerprintTable, reads_four_values_that_are_cast) {
  using All = std::vector<Reads>;
  const auto cast = [](DType from, DType to, Index columns, ValueMap map = ValueMap::identity) {
    return reads_of({8, columns}, to, Box::whole({8, columns}), {0, {columns, 1}},
                    {{from, ValueMap::identity}, {to, map}});
  };
  EXPECT_EQ(cast(DType::f32, DType::bf16, 64), (All{{ReadBy::values4, 16}}));
  EXPECT_EQ(cast(DType::bf16, DType::f32, 64), (All{{ReadBy::values4, 16}}));
  EXPECT_EQ(cast(DType::f32, DType::bf16, 63), (All{{ReadBy::value, 63}}));
  EXPECT_EQ(cast(DType::f32, DType::f32, 64, ValueMap::plus_one), (All{{ReadBy::value, 64}}));
}

TEST(FingerprintTable, cuts_large_tensors_into_tiles_of_about_one_size) {
  const Dims shape{Index{40} << 17, 4096};  // 40 GiB.
  const auto key = *FingerprintKey::make("t", shape, DType::bf16);
  FingerprintTable table;
  ASSERT_TRUE(table.add({&key, Box::whole(shape), {0, row_major(shape)}, nullptr}, 0));
  table.end();
  EXPECT_EQ(table.bytes(), Index{40} << 30);
  EXPECT_EQ(table.tiles().size(), (std::size_t{40} << 30) / FingerprintTable::kTileBytes);
  Index rows = 0;
  for (const FingerprintSlice& slice : table.slices()) rows += slice.count;
  EXPECT_EQ(rows, shape[0]);
}

TEST(FingerprintTable, cuts_boxes_of_too_many_rows) {
  const Dims shape{2, (Index{1} << 29) + 5, 1};
  const auto key = *FingerprintKey::make("t", shape, DType::u8);
  FingerprintTable table;
  ASSERT_TRUE(table.add({&key, Box::whole(shape), {0, row_major(shape)}, nullptr}, 0));
  EXPECT_EQ(table.pieces().size(), 2U);
  Index rows = 0;
  for (const FingerprintSlice& slice : table.slices()) rows += slice.count;
  EXPECT_EQ(rows, volume(shape));
}

TEST(FingerprintTable, refuses_elements_inside_bytes_and_values_that_are_not_aligned) {
  const auto f4 = *FingerprintKey::make("t", Dims{2, 8}, DType::f4);
  FingerprintTable table;
  const auto inside = table.add({&f4, Box{{0, 2}, {1, 6}}, {0, {8, 1}}, nullptr}, 0);
  ASSERT_FALSE(inside);
  EXPECT_EQ(inside.error().code, Code::unsupported);
  const auto values = *FingerprintKey::make("t", Dims{8}, DType::bf16);
  const auto odd =
      table.add({&values,
                 Box::whole({8}),
                 {0, {1}},
                 reinterpret_cast<const std::byte*>(std::uintptr_t{4098}),
                 {{DType::f32, ValueMap::identity}, {DType::bf16, ValueMap::identity}}},
                0);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, Code::unsupported);
  EXPECT_NE(odd.error().message.find("not aligned"), std::string::npos);
}

}  // namespace
}  // namespace reshard::cuda
