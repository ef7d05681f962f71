// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/examples_testutil.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>

#include "reshard/megatron/metadata.h"
#include "reshard/transform/convert.h"

namespace reshard::megatron {
namespace {

GroupRanks group(int first, int count) {
  std::vector<Rank> out;
  for (int i = 0; i < count; ++i) out.emplace_back(first + i);
  return std::make_shared<const std::vector<Rank>>(std::move(out));
}

ProcessGroups groups_of(const ExampleCut& cut, int rank) {
  return {group(cut.first, cut.members), group(rank, 1), group(rank, 1), group(rank, 1),
          group(rank, 1)};
}

Index rows_of(const TilingExample& e, const ExampleCut& cut, int member) {
  if (!cut.uneven.empty()) return cut.uneven[static_cast<std::size_t>(member)];
  return e.shape[cut.dim] / cut.members;
}

Dims shape_of(const TilingExample& e, const ExampleCut& cut, int member) {
  Dims shape = e.shape;
  shape[cut.dim] = rows_of(e, cut, member);
  return shape;
}

/// The index in the whole parameter of local row `i` of a member.
Index place(const TilingExample& e, const ExampleCut& cut, int member, Index i) {
  if (!cut.uneven.empty())
    return std::accumulate(cut.uneven.begin(), cut.uneven.begin() + member, i);
  if (cut.packed.empty()) {
    // Local segment k of member r is segment r + k * members of the whole.
    const Index segment = rows_of(e, cut, member) / cut.stride;
    return (member + i / segment * cut.members) * segment + i % segment;
  }
  Index whole = 0;
  for (const Index rows : cut.packed) {
    if (i < rows) return whole + member * rows + i;
    i -= rows;
    whole += rows * cut.members;
  }
  return -1;
}

ParameterAttributes attributes_of(const ExampleCut& cut) {
  ParameterAttributes a;
  a.tensor_model_parallel = cut.members > 1;
  a.partition_dim = cut.dim;
  a.partition_stride = cut.stride;
  if (!cut.packed.empty()) a.partition_sizes = cut.packed;
  return a;
}

constexpr Index kCols = 96;
constexpr std::array<float, 3> kScales{1.0F, 16.0F, 0.25F};

}  // namespace

std::vector<TilingExample> tiling_examples() {
  return {
      {"units_of_the_lcm", {12, 3}, {0, 2}, {2, 3}},
      {"back", {12, 3}, {0, 3}, {3, 2}},
      {"gate_and_up", {16, 3}, {0, 2, 2}, {2, 4, 2}},
      {"gate_and_up_to_one", {16, 3}, {0, 2, 2}, {2, 1, 2}},
      {"stride_of_three", {36, 3}, {0, 2, 3}, {2, 3, 2}},
      {"packed_parts", {12, 3}, {0, 2, 1, {4, 2}}, {2, 4, 1, {2, 1}}},
      {"packed_parts_to_one", {6, 3}, {0, 2, 1, {2, 1}}, {2, 1}},
      {"other_dimension", {12, 6}, {0, 2}, {2, 3, 1, {}, {}, 1}},
      {"whole_to_cut", {12, 3}, {0, 1}, {1, 4}},
      {"cut_to_whole", {12, 3}, {0, 4}, {4, 1}},
      {"collocated", {12, 3}, {0, 2}, {0, 4}},
      {"overlapping", {24, 3}, {0, 4, 2}, {2, 3, 2}},
      {"uneven_members", {10, 3}, {0, 2}, {2, 3, 1, {}, {4, 3, 3}}, false},
      {"uneven_back", {10, 3}, {0, 3, 1, {}, {2, 1, 7}}, {1, 2}, false},
  };
}

ParameterMetadata metadata_of(const TilingExample& e, const ExampleCut& cut, int member) {
  Tensor t;
  t.view = {nullptr, DType::bf16, shape_of(e, cut, member), {}};
  t.attributes = attributes_of(cut);
  const int rank = cut.first + member;
  auto made = extract_param_metadata(t, "w", Rank(rank), groups_of(cut, rank));
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return *std::move(made);
}

ExampleShard::ExampleShard(const TilingExample& e, const ExampleCut& cut, int rank, bool filled)
    : example_(e),
      cut_(cut),
      member_(rank - cut.first),
      has_(rank >= cut.first && rank < cut.end()) {
  if (!has_) return;
  memory_ = *make_tensor(DType::bf16, shape_of(e, cut, member_));
  module_.config = TransformerConfig{};
  module_.pg_collection = groups_of(cut, rank);
  EXPECT_TRUE(module_.register_parameter("w", memory_.view, attributes_of(cut)));
  if (!filled) return;
  for_each([](std::byte* at, std::uint16_t value) { std::memcpy(at, &value, sizeof value); });
}

/// f(element, what it must be): its place in the whole parameter, counted from 1.
template <class F>
void ExampleShard::for_each(F&& f) const {
  const TensorView& v = memory_.view;
  for (Index row = 0; row < v.shape[0]; ++row)
    for (Index col = 0; col < v.shape[1]; ++col) {
      const Index r = cut_.dim == 0 ? place(example_, cut_, member_, row) : row;
      const Index c = cut_.dim == 1 ? place(example_, cut_, member_, col) : col;
      f(v.data + (row * v.shape[1] + col) * 2,
        static_cast<std::uint16_t>(r * example_.shape[1] + c + 1));
    }
}

Index ExampleShard::wrong() const {
  Index wrong = 0;
  if (has_)
    for_each([&](const std::byte* at, std::uint16_t value) {
      wrong += std::memcmp(at, &value, sizeof value) != 0 ? 1 : 0;
    });
  return wrong;
}

Mxfp8Example mxfp8_ramp(int rank) {
  Mxfp8Example out;
  if (rank > 1) return out;
  out.memory = *make_tensor(DType::bf16, {130, kCols / 2});
  for (Index row = 0; row < 130; ++row)
    for (Index i = 0; i < kCols / 2; ++i) {
      const Index col = rank * kCols / 2 + i;
      const float value =
          static_cast<float>(col % 32 + 1) * kScales[static_cast<std::size_t>(col / 32)];
      std::byte* at = out.memory.view.data + (row * kCols / 2 + i) * 2;
      std::byte raw[4];
      std::memcpy(raw, &value, sizeof raw);
      convert_values({{DType::f32}, {DType::bf16}}, raw, at, 1);
    }
  out.module = std::make_unique<Module>();
  out.module->config = TransformerConfig{};
  const ExampleCut cut{.first = 0, .members = 2, .dim = 1};
  out.module->pg_collection = groups_of(cut, rank);
  EXPECT_TRUE(out.module->register_parameter("w", out.memory.view, attributes_of(cut)));
  return out;
}

Module mxfp8_target(int target) {
  static std::array<std::byte, 130 * kCols * 2> unused;
  Module m;
  m.config = TransformerConfig{};
  m.pg_collection = groups_of({target, 1}, target);
  EXPECT_TRUE(m.register_parameter("w", *tensor_view(unused, DType::bf16, {130, kCols})));
  return m;
}

void expect_ramp(const MXFP8Tensor& got) {
  // amax 32 / 448 is between 2^-4 and 2^-3: the scale is 2^-3, byte 124, and n becomes 8 n in E4M3,
  // to four significant bits, ties to even. 16 times that has 128, a quarter of it 122.
  constexpr std::array<int, 32> kData{0x50, 0x58, 0x5c, 0x60, 0x62, 0x64, 0x66, 0x68,
                                      0x69, 0x6a, 0x6b, 0x6c, 0x6d, 0x6e, 0x6f, 0x70,
                                      0x70, 0x71, 0x72, 0x72, 0x72, 0x73, 0x74, 0x74,
                                      0x74, 0x75, 0x76, 0x76, 0x76, 0x77, 0x78, 0x78};
  constexpr std::array<int, 3> kBytes{124, 128, 122};
  for (Index row = 0; row < 130; ++row)
    for (Index col = 0; col < kCols; ++col) {
      ASSERT_EQ(std::to_integer<int>(got.data.data[row * kCols + col]),
                kData[static_cast<std::size_t>(col % 32)])
          << row << ", " << col;
      const Index block = col / 32;
      // Tiles of 128 rows and 4 columns: (r mod 32) * 16 + (r / 32) * 4 + c.
      const Index in_tile = row % 128;
      const Index at = got.swizzled()
                           ? row / 128 * 512 + in_tile % 32 * 16 + in_tile / 32 * 4 + block
                           : row * 3 + block;
      ASSERT_EQ(std::to_integer<int>(got.scale.data[at]), kBytes[static_cast<std::size_t>(block)])
          << row << ", " << block;
    }
}

}  // namespace reshard::megatron
