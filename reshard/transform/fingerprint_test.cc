// SPDX-License-Identifier: Apache-2.0
// Protects: the fingerprint is the sum of its definition, whatever the boxes, strides, dtype and
// instruction set, and it changes when the tensor does.
#include "reshard/transform/fingerprint.h"
#include "reshard/transform/fingerprint_key.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "reshard/base/hash.h"
#include "reshard/transform/copy.h"
#include "reshard/transform/kernels/fingerprint_kernels.h"
#include "reshard/transform/transform_testutil.h"

namespace reshard {
namespace {

constexpr DType kAnyDType[] = {DType::u8,  DType::bf16, DType::f32,
                               DType::f64, DType::f4,   DType::f6_e2m3};

/// The definition, byte by byte.
Fingerprint by_definition(const FingerprintKey& key, const std::vector<std::byte>& tensor) {
  const auto& table = kernels::column_table();
  const Index row_bytes = key.matrix().row_bytes;
  Fingerprint f;
  for (Index i = 0; i < static_cast<Index>(tensor.size()); ++i) {
    const Index row = i / row_bytes, c = i % row_bytes;
    const auto p = static_cast<std::size_t>(c % 16384);
    const auto q = static_cast<std::uint64_t>(row * key.parts() + c / 16384);
    for (std::size_t l = 0; l < 2; ++l) {
      const std::uint64_t a = mix64(key.lane_key(l) + q) | 1, b = table.weight[l][p / 4];
      f.lane[l] += a * b *
                   ((std::to_integer<std::uint64_t>(tensor[static_cast<std::size_t>(i)]) + 1)
                    << (8 * (p % 4)));
    }
  }
  return f;
}

/// Dimensions of 1 to a few, the last one sometimes longer than a part, whole bytes for every
/// dtype.
Dims any_shape() {
  Dims shape;
  const int rank = *rc::gen::inRange(0, 5);
  for (int i = 0; i + 1 < rank; ++i) shape.push_back(*rc::gen::inRange<Index>(1, 8));
  if (rank > 0)
    shape.push_back(4 * *rc::gen::oneOf(rc::gen::inRange<Index>(1, 60),
                                        rc::gen::element<Index>(1030, 3000, 9000)));
  return shape;
}

std::size_t bytes_of_tensor(const Dims& shape, DType dtype) {
  return static_cast<std::size_t>(*bytes_of(dtype, volume(shape)));
}

RC_GTEST_PROP(Fingerprint, is_what_the_definition_says_at_every_level, ()) {
  const Dims shape = any_shape();
  const DType dtype = *rc::gen::elementOf(std::vector(std::begin(kAnyDType), std::end(kAnyDType)));
  RC_PRE(shape.size() > 0 || bits(dtype) >= 8);
  const auto key = *FingerprintKey::make("t", shape, dtype);
  const auto tensor = random_bytes(static_cast<Index>(bytes_of_tensor(shape, dtype)), 3);
  const Fingerprint expected = by_definition(key, tensor);
  for (const KernelChoice choice : kernel_choices()) {
    const KernelScope scope(choice);
    RC_ASSERT(*fingerprint(key, tensor.data()) == expected);
  }
}

/// Cuts `box` at a random place of a random dimension, `depth` times over, at multiples of 4
/// elements in the last dimension when `whole` (for elements below 8 bits).
void cut(const Box& box, int depth, bool whole, std::vector<Box>& out) {
  if (depth == 0 || box.rank() == 0) return out.push_back(box);
  const int d = *rc::gen::inRange(0, box.rank());
  Index at = *rc::gen::inRange<Index>(box[d].begin(), box[d].end() + 1);
  if (whole && d == box.rank() - 1) at = std::clamp(at / 4 * 4, box[d].begin(), box[d].end());
  for (const Interval part : {Interval{box[d].begin(), at}, Interval{at, box[d].end()}})
    cut(box.with(d, part), depth - 1, whole, out);
}

RC_GTEST_PROP(Fingerprint, of_pieces_stored_anyhow_adds_up_to_that_of_the_tensor, ()) {
  const Dims shape = any_shape();
  const DType dtype = *rc::gen::elementOf(std::vector(std::begin(kAnyDType), std::end(kAnyDType)));
  RC_PRE(shape.size() > 0 || bits(dtype) >= 8);
  const auto key = *FingerprintKey::make("t", shape, dtype);
  const auto tensor = random_bytes(static_cast<Index>(bytes_of_tensor(shape, dtype)), 3);
  const Fingerprint expected = by_definition(key, tensor);
  std::vector<Box> boxes;
  cut(Box::whole(shape), *rc::gen::inRange(0, 5), bits(dtype) < 8, boxes);
  std::vector<Fingerprint> totals(kernel_choices().size());
  for (const Box& box : boxes) {
    // The piece on its own, its dimensions stored in reverse order when elements are whole bytes.
    Strided where{4, row_major(box.shape())};
    if (bits(dtype) >= 8 && *rc::gen::arbitrary<bool>()) {
      Index stride = 1;
      for (int i = 0; i < box.rank(); ++i) {
        where.strides[i] = stride;
        stride *= box[i].size();
      }
    }
    std::vector<std::byte> local(static_cast<std::size_t>(*bytes_of(dtype, box.volume() + 4)));
    const auto copy =
        make_copy(box.shape(), at({0, row_major(shape)}, box.origin()), where, bits(dtype));
    run_copy(*copy, tensor.data(), local.data(), CopyHint::cached);
    for (std::size_t i = 0; i < totals.size(); ++i) {
      const KernelScope scope(kernel_choices()[i]);
      totals[i] += *fingerprint(key, box, where, local.data());
    }
  }
  for (const Fingerprint& total : totals) RC_ASSERT(total == expected);
}

RC_GTEST_PROP(Fingerprint, changes_with_one_bit_and_with_any_exchange, ()) {
  const Dims shape{*rc::gen::inRange<Index>(2, 9), *rc::gen::inRange<Index>(2, 40)};
  const auto key = *FingerprintKey::make("t", shape, DType::bf16);
  const auto tensor = random_bytes(volume(shape) * 2, *rc::gen::arbitrary<std::uint64_t>());
  const Fingerprint before = *fingerprint(key, tensor.data());
  auto changed = tensor;
  const auto i = static_cast<std::size_t>(*rc::gen::inRange<Index>(0, volume(shape) * 2));
  changed[i] ^= std::byte{1} << *rc::gen::inRange(0, 8);
  const Fingerprint one_bit = *fingerprint(key, changed.data());
  RC_ASSERT(one_bit.lane[0] != before.lane[0] && one_bit.lane[1] != before.lane[1]);
  changed = tensor;
  const auto j = static_cast<std::size_t>(*rc::gen::inRange<Index>(0, volume(shape) * 2));
  std::swap(changed[i], changed[j]);
  RC_ASSERT((*fingerprint(key, changed.data()) == before) == (tensor[i] == tensor[j]));
  changed = tensor;
  std::swap_ranges(changed.begin(), changed.begin() + 2 * shape[1], changed.begin() + 2 * shape[1]);
  RC_ASSERT((*fingerprint(key, changed.data()) == before) == (changed == tensor));
}

TEST(Fingerprint, sign_flips_of_two_elements_do_not_cancel) {
  const Dims shape{64, 64};
  const auto key = *FingerprintKey::make("t", shape, DType::f32);
  std::vector<std::byte> tensor(64 * 64 * 4);
  std::set<std::array<std::uint64_t, 2>> seen;
  for (std::size_t i = 0; i < 64 * 64; ++i) {
    tensor[4 * i + 3] = std::byte{0x80};
    EXPECT_TRUE(seen.insert(fingerprint(key, tensor.data())->lane).second);
    tensor[4 * i + 3] = std::byte{0};
  }
}

TEST(Fingerprint, depends_on_name_shape_and_dtype_even_for_zeros) {
  const std::vector<std::byte> zeros(64);
  std::set<std::array<std::uint64_t, 2>> seen;
  int keys = 0;
  for (const char* name : {"a", "b"}) {
    for (const Dims& shape : {Dims{4, 4}, Dims{2, 8}, Dims{16}, Dims{1, 16}, Dims{4, 2}}) {
      for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        seen.insert(fingerprint(*FingerprintKey::make(name, shape, dtype), zeros.data())->lane);
        ++keys;
      }
    }
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(keys));
}

TEST(Fingerprint, of_a_missing_or_doubled_piece_of_zeros_is_another) {
  const auto key = *FingerprintKey::make("t", Dims{4, 8}, DType::bf16);
  const std::vector<std::byte> zeros(64);
  const Fingerprint whole = *fingerprint(key, zeros.data());
  const Fingerprint half = *fingerprint(key, Box{{0, 4}, {0, 4}}, {0, {8, 1}}, zeros.data());
  EXPECT_NE(whole, half);
  EXPECT_NE(whole, half + half);
  EXPECT_NE(whole + half, whole);
}

TEST(Fingerprint, of_nothing_is_zero) {
  const auto key = *FingerprintKey::make("t", Dims{0, 4}, DType::f32);
  EXPECT_EQ(*fingerprint(key, nullptr), Fingerprint{});
}

TEST(Fingerprint, column_weights_are_odd_and_different) {
  for (const auto& lane : kernels::column_table().weight) {
    std::set<std::uint32_t> seen;
    for (std::size_t w = 0; w < kPartWords; ++w) {
      EXPECT_EQ(lane[w] % 2, 1u);
      EXPECT_TRUE(seen.insert(lane[w]).second);
    }
  }
}

TEST(Fingerprint, stays_the_same_over_releases) {
  const auto key = *FingerprintKey::make("model.embed_tokens.weight", Dims{3, 5}, DType::bf16);
  std::vector<std::byte> tensor(30);
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<std::byte>(i);
  EXPECT_EQ(to_string(*fingerprint(key, tensor.data())), "7d1889902d0ecad97719d931879af04b");
}

TEST(Fingerprint, text_form_is_exact_and_strict) {
  const Fingerprint f{{0x0123456789abcdefULL, 0xfedcba9876543210ULL}};
  EXPECT_EQ(to_string(f), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(fingerprint_from_string(to_string(f)), f);
  EXPECT_FALSE(fingerprint_from_string("0123456789abcdeffedcba987654321"));
  EXPECT_FALSE(fingerprint_from_string("0123456789abcdeffedcba987654321g"));
  EXPECT_FALSE(fingerprint_from_string("0123456789ABCDEFFEDCBA9876543210"));
}

TEST(Fingerprint, elements_inside_bytes_and_shapes_out_of_range_are_errors) {
  EXPECT_EQ(FingerprintKey::make("t", Dims{3, 5}, DType::f4).error().code, Code::unsupported);
  EXPECT_EQ(FingerprintKey::make("t", Dims{}, DType::f6_e2m3).error().code, Code::unsupported);
  EXPECT_EQ(FingerprintKey::make("t", Dims{-1, 5}, DType::f32).error().code,
            Code::invalid_argument);
  const Index big = Index{1} << 40;
  EXPECT_EQ(FingerprintKey::make("t", Dims{big, big, 0}, DType::f32).error().code,
            Code::invalid_argument);
  const auto key = *FingerprintKey::make("t", Dims{2, 8}, DType::f4);
  const std::vector<std::byte> data(8);
  EXPECT_TRUE(fingerprint(key, Box{{0, 2}, {2, 6}}, {0, {8, 1}}, data.data()));
  EXPECT_EQ(fingerprint(key, Box{{0, 2}, {1, 6}}, {0, {8, 1}}, data.data()).error().code,
            Code::unsupported);
  EXPECT_FALSE(fingerprint(key, Box{{0, 2}, {2, 6}}, {1, {8, 1}}, data.data()));
  EXPECT_FALSE(fingerprint(key, Box{{0, 2}, {2, 6}}, {0, {1, 2}}, data.data()));
}

}  // namespace
}  // namespace reshard
