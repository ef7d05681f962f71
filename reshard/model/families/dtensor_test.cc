// SPDX-License-Identifier: Apache-2.0
// Protects: the shards of torch's DTensor and fully_shard on each rank, by hand-worked numbers.
// tests/python/test_dtensor.py compares with torch itself.
#include "reshard/model/families/dtensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/families.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Interval> runs(Index extent, std::vector<DimShard> shards, std::vector<Index> at) {
  return local_runs(extent, shards, at);
}

TEST(DTensor, shards_follow_torch_chunk) {
  // 10 over 4 is 3, 3, 3, 1; 5 over 4 is 2, 2, 1, 0.
  EXPECT_THAT(runs(10, {{4}}, {2}), ElementsAre(Interval{6, 9}));
  EXPECT_THAT(runs(10, {{4}}, {3}), ElementsAre(Interval{9, 10}));
  EXPECT_THAT(runs(5, {{4}}, {3}), IsEmpty());
  EXPECT_THAT(runs(0, {{4}}, {0}), IsEmpty());
}

TEST(DTensor, later_mesh_dimensions_cut_what_earlier_ones_left) {
  EXPECT_THAT(runs(10, {{2}, {3}}, {1, 0}), ElementsAre(Interval{5, 7}));
  EXPECT_THAT(runs(10, {{2}, {3}}, {1, 2}), ElementsAre(Interval{9, 10}));
}

TEST(DTensor, a_strided_shard_takes_a_piece_of_every_chunk) {
  EXPECT_THAT(runs(8, {{2, 2}}, {1}), ElementsAre(Interval{2, 4}, Interval{6, 8}));
  // Uneven: chunks of 7 over 2 are 4 and 3; over 2 again 2, 2 and 2, 1.
  EXPECT_THAT(runs(7, {{2, 2}}, {1}), ElementsAre(Interval{2, 4}, Interval{6, 7}));
  // With the shard that it was made for, it is the other order of cutting.
  EXPECT_THAT(runs(8, {{2, 2}, {2}}, {1, 0}), ElementsAre(Interval{2, 4}));
  EXPECT_THAT(runs(8, {{2, 2}, {2}}, {0, 1}), ElementsAre(Interval{4, 6}));
}

TEST(DTensor, plain_order_puts_a_strided_shard_behind_its_chunks) {
  const std::vector<DimShard> plain{{2}, {3}};
  EXPECT_THAT(plain_order(plain), ElementsAre(0, 1));
  const std::vector<DimShard> reversed{{4, 2}, {2}};
  EXPECT_THAT(plain_order(reversed), ElementsAre(1, 0));
  const std::vector<DimShard> three{{4, 6}, {3, 2}, {2}};
  EXPECT_THAT(plain_order(three), ElementsAre(2, 1, 0));
  const std::vector<DimShard> none{{4, 3}, {2}};
  EXPECT_THAT(plain_order(none), IsEmpty());
}

TEST(DTensor, placements_are_read_in_torchs_spellings) {
  const Placement shard{Placement::Kind::shard, 0, 1};
  const Placement strided{Placement::Kind::strided_shard, -1, 4};
  EXPECT_EQ(*parse_placement("R"), Placement{});
  EXPECT_EQ(*parse_placement("Replicate()"), Placement{});
  EXPECT_EQ(*parse_placement("S(0)"), shard);
  EXPECT_EQ(*parse_placement(" Shard(dim=0) "), shard);
  for (const char* text : {"_S(-1, 4)", "_S(-1, sf=4)", "_StridedShard(dim=-1, sf=4)",
                           "_StridedShard(dim=-1, split_factor=4)"})
    EXPECT_EQ(*parse_placement(text), strided) << text;
  EXPECT_EQ(to_string(strided), "_S(-1, 4)");
  for (const char* bad : {"", "P", "P(sum)", "S", "S()", "S(x)", "S(9)", "_S(0)", "_S(0, 0)",
                          "_S(0, 65537)", "_S(0, 2", "S(0, 2)", "S(dim=0,)", "_S(sf=0, 2)"})
    EXPECT_FALSE(parse_placement(bad).has_value()) << bad;
}

/// "[2, 16] [4,6)x[0,16)@0": the module's shape and the fragments with their offsets.
std::string held(const ModelLayout& layout, const std::string& name, int rank) {
  for (SlotId id : layout.slots_of(Rank(rank))) {
    if (layout.slot(id).name != name) continue;
    std::string text = to_string(layout.stored_shape(id, Rank(rank)));
    for (const Fragment& f : layout.local(id, Rank(rank)).fragments)
      text += " " + to_string(f.box) + "@" + std::to_string(f.where.offset);
    return text;
  }
  return "absent";
}

std::shared_ptr<const ModelSpec> model(std::initializer_list<CanonicalTensor> tensors) {
  auto spec = std::make_shared<ModelSpec>();
  for (const CanonicalTensor& t : tensors)
    EXPECT_TRUE(spec->add(t.name, t.shape, t.dtype, t.merged));
  return spec;
}

TEST(Fsdp, cuts_rows_by_ceil_and_leaves_trailing_ranks_empty) {
  const auto m = model({{"model.norm.weight", {5}, DType::bf16, {}}});
  const auto l = fsdp_layout(*parse_layout("fsdp:shard=4,offset=2"), {m});
  ASSERT_TRUE(l.has_value()) << l.error().message;
  EXPECT_EQ(held(*l, "model.norm.weight", 2), "[2] [0,2)@0");
  EXPECT_EQ(held(*l, "model.norm.weight", 4), "[1] [4,5)@0");
  EXPECT_EQ(held(*l, "model.norm.weight", 5), "[0]");
  EXPECT_EQ(held(*l, "model.norm.weight", 1), "absent");
}

TEST(Fsdp, cuts_inside_what_tensor_parallelism_left) {
  const auto m = model({{"l.q_proj.weight", {16, 8}, DType::bf16, {}},
                        {"l.q_proj.bias", {16}, DType::bf16, {}},
                        {"l.o_proj.weight", {16, 8}, DType::bf16, {}},
                        {"l.o_proj.bias", {16}, DType::bf16, {}},
                        {"l.gate.e_score_correction_bias", {16}, DType::f32, {}}});
  FamilyInput input{m};
  input.model_type = "deepseek_v3";
  const auto l = fsdp_layout(*parse_layout("fsdp:shard=2,tp=2,replicate=2"), input);
  ASSERT_TRUE(l.has_value()) << l.error().message;
  ASSERT_EQ(l->ranks().size(), 8);
  // Rank 5 = replicate 1, shard 0, tp 1; rank 6 = replicate 1, shard 1, tp 0.
  EXPECT_EQ(held(*l, "l.q_proj.weight", 5), "[4, 8] [8,12)x[0,8)@0");
  EXPECT_EQ(held(*l, "l.q_proj.weight", 6), "[4, 8] [4,8)x[0,8)@0");
  EXPECT_EQ(held(*l, "l.q_proj.bias", 6), "[4] [4,8)@0");
  EXPECT_EQ(held(*l, "l.o_proj.weight", 6), "[8, 4] [8,16)x[0,4)@0");
  EXPECT_EQ(held(*l, "l.o_proj.bias", 5), "[8] [0,8)@0");
  EXPECT_EQ(held(*l, "l.gate.e_score_correction_bias", 6), "[16] [0,16)@0");
}

TEST(Fsdp, stores_weights_in_the_dtype_that_is_asked_for) {
  const auto m = model({{"l.q_proj.weight", {4, 8}, DType::bf16, {}},
                        {"l.steps", {4}, DType::i64, {}},
                        {"l.gate.e_score_correction_bias", {4}, DType::bf16, {}}});
  FamilyInput input{m};
  input.model_type = "deepseek_v3";
  const auto l = fsdp_layout(*parse_layout("fsdp:shard=2,dtype=float32"), input);
  ASSERT_TRUE(l.has_value()) << l.error().message;
  EXPECT_EQ(l->slot(SlotId(0)).dtype, DType::f32);
  EXPECT_EQ(l->slot(SlotId(1)).dtype, DType::i64);
  // A buffer that transformers keeps in float32, whatever it loads a model in.
  EXPECT_EQ(l->slot(SlotId(2)).dtype, DType::f32);
  EXPECT_EQ(fsdp_layout(*parse_layout("fsdp:shard=2"), input)->slot(SlotId(2)).dtype, DType::f32);
  EXPECT_THAT(fsdp_layout(*parse_layout("fsdp:dtype=int8"), {m}).error().message,
              HasSubstr("fsdp: dtype=int8 must be float32, bfloat16 or float16"));
}

TEST(Fsdp, holds_scalars_whole_on_each_rank) {
  const auto m = model({{"scale", {}, DType::f32, {}}, {"q_proj.input_scale", {}, DType::f32, {}}});
  const auto l = fsdp_layout(*parse_layout("fsdp:shard=2,dtype=bfloat16"), {m});
  ASSERT_TRUE(l) << l.error().message;
  for (int r = 0; r < 2; ++r)
    for (int s = 0; s < 2; ++s) EXPECT_EQ(l->local_shape(SlotId(s), Rank(r)), Dims{});
  EXPECT_EQ(l->slot(SlotId(0)).dtype, DType::bf16);
  // A calibrated number, no weight.
  EXPECT_EQ(l->slot(SlotId(1)).dtype, DType::f32);
}

TEST(Fsdp, holds_every_tiny_model) {
  for (const ModelConfig& c : tiny_models()) {
    const auto l = fsdp_layout(*parse_layout("fsdp:shard=3,tp=2"), {model_of(c), &c});
    ASSERT_TRUE(l.has_value()) << c.architecture << ": " << l.error().message;
    for (int r = 0; r < 6; ++r) {
      const auto checked = check_shard_map(*l, Rank(r));
      EXPECT_TRUE(checked.has_value()) << c.architecture << ": " << checked.error().message;
    }
  }
}

/// A layout of one tensor "t" on one mesh.
Result<ModelLayout> one(CanonicalTensor t, DTensorMesh mesh, std::vector<Placement> placements) {
  DTensorSet set{{std::move(mesh)}, {{"*", "", 0, std::move(placements)}}};
  return dtensor_layout(*parse_layout("dtensor:x.json"), {model({t})}, set);
}

std::vector<Rank> ranks(std::initializer_list<int> numbers) {
  std::vector<Rank> out;
  for (int n : numbers) out.emplace_back(n);
  return out;
}

constexpr Placement kReplicate{};
constexpr Placement shard(int dim) { return {Placement::Kind::shard, dim, 1}; }
constexpr Placement strided(int dim, Index factor) {
  return {Placement::Kind::strided_shard, dim, factor};
}

TEST(DTensorLayout, ranks_may_come_in_any_order) {
  const auto l =
      one({"t", {4, 6}, DType::bf16, {}}, {"m", {2, 2}, ranks({7, 2, 3, 9})}, {shard(0), shard(1)});
  ASSERT_TRUE(l.has_value()) << l.error().message;
  EXPECT_EQ(l->ranks(), [] {
    RankSet s;
    for (int r : {2, 3, 7, 9}) s.insert(Rank(r));
    return s;
  }());
  EXPECT_EQ(held(*l, "t", 7), "[2, 3] [0,2)x[0,3)@0");
  EXPECT_EQ(held(*l, "t", 2), "[2, 3] [0,2)x[3,6)@0");
  EXPECT_EQ(held(*l, "t", 3), "[2, 3] [2,4)x[0,3)@0");
  EXPECT_EQ(held(*l, "t", 9), "[2, 3] [2,4)x[3,6)@0");
}

TEST(DTensorLayout, a_lone_strided_shard_is_several_runs) {
  const auto l = one({"t", {8, 2}, DType::bf16, {}}, {"m", {2}, ranks({0, 1})}, {strided(0, 2)});
  ASSERT_TRUE(l.has_value()) << l.error().message;
  EXPECT_EQ(held(*l, "t", 0), "[4, 2] [0,2)x[0,2)@0 [4,6)x[0,2)@4");
  EXPECT_EQ(held(*l, "t", 1), "[4, 2] [2,4)x[0,2)@0 [6,8)x[0,2)@4");
}

TEST(DTensorLayout, an_even_strided_shard_has_one_slot_for_all_ranks) {
  const DTensorMesh mesh{"m", {2, 2}, ranks({0, 1, 2, 3})};
  const auto even = one({"t", {8}, DType::bf16, {}}, mesh, {strided(0, 2), shard(0)});
  ASSERT_TRUE(even.has_value()) << even.error().message;
  EXPECT_EQ(even->num_slots(), 1);
  EXPECT_EQ(held(*even, "t", 1), "[2] [4,6)@0");
  EXPECT_EQ(held(*even, "t", 2), "[2] [2,4)@0");
  // 7 over (2 then 2): chunks 4 and 3, rank row 0 holds 0, 1, 4, 5 and cuts these in two.
  const auto uneven = one({"t", {7}, DType::bf16, {}}, mesh, {strided(0, 2), shard(0)});
  ASSERT_TRUE(uneven.has_value()) << uneven.error().message;
  EXPECT_EQ(held(*uneven, "t", 1), "[2] [4,6)@0");
  EXPECT_EQ(held(*uneven, "t", 2), "[2] [2,4)@0");
  EXPECT_EQ(held(*uneven, "t", 3), "[1] [6,7)@0");
}

TEST(DTensorLayout, cuts_merged_dimensions_where_torch_does) {
  // Stored [2, 6]: canonical [2, 3, 2]. Over 2 the second dimension is cut at 3, inside a pair.
  const CanonicalTensor t{"t", {2, 3, 2}, DType::bf16, {0b10}};
  const auto l = one(t, {"m", {2}, ranks({0, 1})}, {shard(1)});
  ASSERT_TRUE(l.has_value()) << l.error().message;
  EXPECT_EQ(held(*l, "t", 0), "[2, 3] [0,2)x[0,1)x[0,2)@0 [0,2)x[1,2)x[0,1)@2");
  EXPECT_EQ(held(*l, "t", 1), "[2, 3] [0,2)x[1,2)x[1,2)@0 [0,2)x[2,3)x[0,2)@1");
  EXPECT_TRUE(check_shard_map(*l, Rank(0)).has_value());
  // Over 3 it is cut between pairs.
  const auto between = one(t, {"m", {3}, ranks({0, 1, 2})}, {shard(-1)});
  EXPECT_EQ(held(*between, "t", 2), "[2, 2] [0,2)x[2,3)x[0,2)@0");
}

TEST(DTensorLayout, errors_name_what_is_wrong) {
  const CanonicalTensor t{"t", {4}, DType::bf16, {}};
  const auto said = [&](DTensorMesh mesh, Placement p) {
    const auto l = one(t, std::move(mesh), {p});
    return l ? "" : l.error().message;
  };
  EXPECT_THAT(said({"m", {2}, ranks({0, 1})}, shard(1)),
              HasSubstr("tensor 't': placement S(1) but the tensor's shape is [4]"));
  EXPECT_THAT(said({"m", {2}, ranks({3, 3})}, kReplicate), HasSubstr("rank 3 is listed twice"));
  EXPECT_THAT(said({"m", {2}, ranks({3})}, kReplicate), HasSubstr("has 2 ranks but 1 are listed"));
  EXPECT_THAT(said({"m", {1}, ranks({-1})}, kReplicate), HasSubstr("rank -1"));
}

TEST(DTensorLayout, rules_choose_by_number_and_mesh) {
  DTensorSet set{
      {{"a", {1}, ranks({0})}, {"b", {1}, ranks({1})}},
      {{"layers.#", "", 0, {kReplicate}, 1, 0, 2}, {"layers.#", "l$1", 1, {kReplicate}}}};
  const auto m = model({{"layers.1", {2}, DType::bf16, {}}, {"layers.2", {2}, DType::bf16, {}}});
  const auto l = dtensor_layout(*parse_layout("dtensor:x.json"), {m}, set);
  ASSERT_TRUE(l.has_value()) << l.error().message;
  EXPECT_EQ(held(*l, "layers.1", 0), "[2] [0,2)@0");
  EXPECT_EQ(held(*l, "l2", 1), "[2] [0,2)@0");
  EXPECT_EQ(held(*l, "l1", 1), "absent");
  set.rules.pop_back();
  EXPECT_THAT(dtensor_layout(*parse_layout("dtensor:x.json"), {m}, set).error().message,
              HasSubstr("tensor 'layers.2': no rule of 'x.json' matches"));
}

}  // namespace
}  // namespace reshard
