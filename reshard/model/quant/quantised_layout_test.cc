// SPDX-License-Identifier: Apache-2.0
// Protects: the positions of scales. Every element has the scale of its block, checked element by
// element on every rank of random layouts, for both grids.
#include "reshard/model/quant/quantised_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "reshard/io/cards_testutil.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/model/families.h"
#include "reshard/model/held_testutil.h"
#include "reshard/model/quant/notation.h"
#include "reshard/model/random_layout_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

const QuantFormat kBlock{.data = DType::f8_e4m3,
                         .scale = DType::f32,
                         .block_rows = 128,
                         .block_cols = 128,
                         .rule = ScaleRule::exact};

using Element = std::pair<int, Index>;  // tensor, row-major element of the whole

/// Local element -> the canonical elements there.
std::map<Index, Element> elements_of(const ModelLayout& layout, SlotId slot, Rank r) {
  std::map<Index, Element> out;
  for (const Fragment& f : layout.local(slot, r).fragments)
    for_each_element(layout.model(), f, [&](Index canonical, Index local) {
      out[local] = {f.tensor.value(), canonical};
    });
  return out;
}

/// The element of `of`, [.., ceil(M / rows), ceil(N / cols)], that an element of [.., M, N] falls
/// to.
Index block_of(const Dims& shape, Index element, const Dims& of, Index rows, Index cols) {
  const int n = shape.size();
  const Index col = element % shape[n - 1], row = element / shape[n - 1] % shape[n - 2];
  const Index matrix = element / shape[n - 1] / shape[n - 2];
  return (matrix * of[n - 2] + (rows == 0 ? 0 : row / rows)) * of[n - 1] +
         (cols == 0 ? 0 : col / cols);
}

/// Data element -> element of the scales (or the factor), as the areas of a rank say.
std::map<Index, Index> by_areas(const QuantisedLayout& q, const QuantisedLayout::Pair& pair, Rank r,
                                bool factor) {
  const QuantFormat& f = q.choice.format;
  std::map<Index, Index> out;
  const Index numbers = volume(q.stored->local_shape(factor ? pair.factor : pair.scales, r));
  for (const QuantBlockArea& a : block_areas(q, pair, r)) {
    for (Index i = 0; i < a.rows; ++i) {
      for (Index j = 0; j < a.cols; ++j) {
        const Index scale = a.scale_offset +
                            (f.block_rows == 0 ? 0 : i / f.block_rows) * a.scale_row +
                            (f.block_cols == 0 ? 0 : j / f.block_cols);
        const Index number = factor ? a.factor_offset : scale;
        RC_ASSERT(number < numbers);
        const bool fresh = out.emplace(a.data_offset + i * a.data_row + j, number).second;
        RC_ASSERT(fresh);
      }
    }
  }
  return out;
}

/// A pair that is planned: scales of canonical elements are the canonical scales of their blocks.
void check_canonical(const QuantisedLayout& q, const QuantisedLayout::Pair& pair, Rank r,
                     bool factor) {
  const ModelSpec& model = q.stored->model();
  const QuantFormat& f = q.choice.format;
  const auto data = elements_of(*q.stored, pair.data, r);
  const auto scales = elements_of(*q.stored, factor ? pair.factor : pair.scales, r);
  const auto areas = by_areas(q, pair, r, factor);
  RC_ASSERT(areas.size() >= data.size());
  for (const auto& [local, element] : data) {
    const CanonicalTensor& t = model[TensorId(element.first)];
    const auto scale = scales.at(areas.at(local));
    const CanonicalTensor& s = model[TensorId(scale.first)];
    RC_ASSERT(s.name == t.name + (factor ? "_scale_2" : scale_suffix(f)));
    RC_ASSERT(scale.second == block_of(t.shape, element.second, s.shape, factor ? 0 : f.block_rows,
                                       factor ? 0 : f.block_cols));
  }
  for (const auto& [local, scale] : scales)  // nothing is held that no element needs
    RC_ASSERT(std::any_of(areas.begin(), areas.end(),
                          [&, at = local](const auto& area) { return area.second == at; }));
}

/// A pair with a grid of its own: blocks are counted from the piece of each section.
void check_own(const QuantisedLayout& q, const QuantisedLayout::Pair& pair, Rank r) {
  const QuantFormat& f = q.choice.format;
  const ModelLayout& v = *q.values;
  const Dims shape = v.local_shape(pair.values, r);
  const Slot& slot = v.slot(pair.values);
  const Mesh& mesh = v.mesh(slot.mesh);
  Dims coordinates;
  for (int i = 0; i < static_cast<int>(mesh.axes().size()); ++i)
    coordinates.push_back(mesh.coordinate(r, i));
  const auto areas = by_areas(q, pair, r, false);
  RC_ASSERT(static_cast<Index>(areas.size()) == volume(shape));
  const Dims scales = q.stored->local_shape(pair.scales, r);
  const int n = shape.size();
  const auto up = [](Index a, Index b) { return b == 0 ? Index{a > 0} : (a + b - 1) / b; };
  Index row = 0, scale_row = 0;
  for (const Section& section : slot.sections) {
    const Index rows = cut(v.dim_cut(section.cuts[static_cast<std::size_t>(n - 2)]), mesh,
                           section.extent[n - 2], coordinates)
                           .size();
    for (Index m = 0; m < volume(shape) / std::max<Index>(1, shape[n - 1] * shape[n - 2]); ++m)
      for (Index i = 0; i < rows; ++i)
        for (Index j = 0; j < shape[n - 1]; ++j)
          RC_ASSERT(areas.at((m * shape[n - 2] + row + i) * shape[n - 1] + j) ==
                    (m * scales[n - 2] + scale_row + (f.block_rows == 0 ? 0 : i / f.block_rows)) *
                            scales[n - 1] +
                        (f.block_cols == 0 ? 0 : j / f.block_cols));
    row += rows;
    scale_row += up(rows, f.block_rows);
  }
  RC_ASSERT(scale_row == scales[n - 2]);
  RC_ASSERT(volume(shape) == 0 || scales[n - 1] == up(shape[n - 1], f.block_cols));
}

QuantFormat random_format() {
  QuantFormat f = kBlock;
  f.block_rows = *rc::gen::inRange<int>(0, 4);
  f.block_cols = *rc::gen::inRange<int>(0, 4);
  f.tensor_factor = *rc::gen::arbitrary<bool>();
  return f;
}

std::set<std::string> matrices_of(const ModelSpec& model) {
  std::set<std::string> names;
  for (const CanonicalTensor& t : model.tensors())
    if (t.shape.size() >= 2 && t.dtype == DType::bf16) names.insert(t.name);
  return names;
}

RC_GTEST_PROP(QuantisedLayout, every_element_has_the_scale_of_its_block, ()) {
  const auto model = random_matrices();
  const auto layout = random_layout(model);
  const BlockGrid grid = *rc::gen::element(BlockGrid::local, BlockGrid::tensor);
  const QuantChoice choice{random_format(), grid, matrices_of(*model), ""};
  auto made = quantise_layout(layout, choice);
  if (!made) RC_FAIL(made.error().message);
  const QuantisedLayout& q = *made;
  RC_ASSERT(static_cast<Index>(q.plain.size()) == layout->num_slots());
  RC_CLASSIFY(q.pairs[0].exact, "exact");
  RC_CLASSIFY(!q.pairs[0].whole, "cut");
  RC_ASSERT(first_missing(*layout).empty() &&
            (!q.pairs[0].exact || grid == BlockGrid::local || first_missing(*q.stored).empty()));
  layout->ranks().for_each([&](Rank r) {
    const auto ok = check_shard_map(*q.stored, r);
    if (!ok) RC_FAIL(ok.error().message);
    for (const auto& pair : q.pairs) {
      const auto slots = layout->slots_of(r);
      if (std::find(slots.begin(), slots.end(), pair.values) == slots.end()) continue;
      RC_ASSERT(pair.exact || grid == BlockGrid::local);
      RC_ASSERT(pair.whole || grid == BlockGrid::tensor);
      RC_ASSERT(q.stored->local_shape(pair.data, r) == layout->local_shape(pair.values, r));
      if (pair.exact) check_canonical(q, pair, r, false);
      if (pair.exact && q.choice.format.tensor_factor) check_canonical(q, pair, r, true);
      if (grid == BlockGrid::local) check_own(q, pair, r);
    }
  });
  const auto again = quantise_layout(layout, choice);
  RC_ASSERT(again->stored->digest() == q.stored->digest());
  const auto other = quantise_layout(random_layout(model), choice);
  RC_ASSERT(other->stored->model().digest() == q.stored->model().digest());
}

// Experts of one tensor, [E, in, out, 2] and [E, in, out]; blocks run along the second dimension.
RC_GTEST_PROP(QuantisedLayout, an_input_first_tensor_has_its_scales_along_its_input, ()) {
  ModelConfig c = tiny_gpt_oss();
  c.hidden_size = 64;
  c.moe_intermediate_size = 64;
  c.num_experts = 2;
  const auto model = model_of(c);
  const auto names = input_first_tensors(*model);
  RC_ASSERT(names.size() == 8);
  const auto text = *rc::gen::element<std::string>("hf", "hf:shards=3", "vllm:tp=2", "vllm:tp=1",
                                                   "vllm:tp=2,ep=2", "sglang:tp=2,transposed=1");
  const BlockGrid grid = *rc::gen::element(BlockGrid::local, BlockGrid::tensor);
  const auto values = input_last(layout_of(text, model, c), names);
  RC_ASSERT(values.has_value());
  const QuantFormat mxfp4 = *quant_format_from_name("mxfp4");
  const auto q = quantise_layout(*values, {mxfp4, grid, names, "", "", names});
  if (!q) RC_FAIL(q.error().message);
  RC_ASSERT(first_missing(**values).empty() && first_missing(*q->stored).empty());
  q->stored->ranks().for_each([&](Rank r) {
    RC_ASSERT(check_shard_map(**values, r).has_value());
    RC_ASSERT(check_shard_map(*q->stored, r).has_value());
  });
  const auto& pair = *rc::gen::elementOf(q->pairs);
  const auto ranks = q->values->rank_set(q->values->slot(pair.values).ranks).members();
  const Rank r = *rc::gen::elementOf(ranks);
  RC_ASSERT(pair.exact && pair.whole);
  check_canonical(*q, pair, r, false);
  // Rows with blocks of their own are one matrix for the kernels.
  RC_ASSERT(block_areas(*q, pair, r).size() == 1);
}

// gpt_oss.py of vLLM 0.32 creates experts' parameters as large on every rank and gives each
// ceil(blocks / ranks) blocks: 3 blocks of 32 over 2 ranks.
TEST(QuantisedLayout, blocks_that_ranks_do_not_divide_are_as_many_on_each) {
  ModelConfig c = tiny_gpt_oss();
  c.hidden_size = 64;
  c.moe_intermediate_size = 96;
  const auto model = model_of(c);
  const std::string at = "model.layers.0.mlp.experts.routed_experts.";
  for (const char* grid : {"", ",quant_grid=tensor"}) {
    LayoutSpec spec = *parse_layout(std::string("vllm:tp=2,quant=mxfp4") + grid);
    const QuantNotation notation = **take_quant(spec);
    const FamilyInput input{model, &c, nullptr, expert_block(notation, *model, nullptr)};
    const auto values =
        std::make_shared<const ModelLayout>(*rules_layout(spec, input, card_of("vllm", c)));
    const auto q = quantised_as(notation, values);
    ASSERT_TRUE(q.has_value()) << q.error().message;
    for (const int rank : {0, 1}) {
      EXPECT_EQ(shape_on(*q->stored, at + "w13_weight", rank), "[4, 128, 64]");
      EXPECT_EQ(shape_on(*q->stored, at + "w13_weight_scale", rank), "[4, 128, 2]");
      EXPECT_EQ(shape_on(*q->stored, at + "w2_weight", rank), "[4, 64, 64]");
      EXPECT_EQ(shape_on(*q->stored, at + "w2_weight_scale", rank), "[4, 64, 2]");
      EXPECT_EQ(shape_on(*q->stored, at + "w13_bias", rank), "[4, 128]");
      EXPECT_TRUE(check_shard_map(*q->values, Rank(rank)).has_value());
      EXPECT_TRUE(check_shard_map(*q->stored, Rank(rank)).has_value());
    }
    // The second rank's own: the third block.
    EXPECT_EQ(boxes_on(*q->stored, at + "w2_weight_scale", 1),
              "down_proj_scale[0,4)x[0,64)x[2,3)@0:128,2,1");
    EXPECT_TRUE(first_missing(*q->stored).empty());
    for (const QuantisedLayout::Pair& pair : q->pairs) EXPECT_TRUE(pair.exact && pair.whole);
  }
}

// refine_fp8_moe_block_shape of vLLM 0.32: 384 rows over 4 ranks are 96, and 32 divides these, 128
// and the width.
TEST(QuantisedLayout, scales_of_blocks_that_experts_shards_cut_are_there_for_each_part) {
  ModelConfig c = wide_moe();
  c.hidden_size = c.intermediate_size = 256;
  c.moe_intermediate_size = 384;
  c.num_experts = 4;
  c.head_dim = 64;
  const auto model = model_of(c);
  LayoutSpec spec = *parse_layout("vllm:tp=2,dp=2,quant=fp8_block");
  const QuantNotation notation = **take_quant(spec);
  const auto q = quantised_as(notation, layout_of(to_string(spec), model, c));
  ASSERT_TRUE(q.has_value()) << q.error().message;
  const std::string at = "model.layers.1.mlp.experts.routed_experts.";
  EXPECT_EQ(shape_on(*q->stored, at + "w13_weight_scale_inv", 1), "[4, 6, 8]");
  EXPECT_EQ(shape_on(*q->stored, at + "w2_weight_scale_inv", 1), "[4, 8, 3]");
  EXPECT_TRUE(first_missing(*q->stored).empty());
  for (const QuantisedLayout::Pair& pair : q->pairs) {
    if (pair.refined == 0) continue;
    EXPECT_EQ(pair.refined, 32);
    EXPECT_TRUE(pair.exact && !pair.whole);
    for (const Rank r : {Rank(0), Rank(3)}) {
      EXPECT_TRUE(check_shard_map(*q->stored, r).has_value());
      const auto data = elements_of(*q->stored, pair.data, r);
      const auto scales = elements_of(*q->stored, pair.scales, r);
      const auto areas = by_areas(*q, pair, r, false);
      const Dims shape = q->stored->local_shape(pair.data, r);
      const Dims of = q->stored->local_shape(pair.scales, r);
      ASSERT_EQ(static_cast<Index>(scales.size()), volume(of));
      for (const auto& [local, element] : data) {
        const auto& tensor = q->stored->model()[TensorId(element.first)];
        const auto& stored = q->stored->model()[TensorId(element.first + 1)];
        const Index want = block_of(tensor.shape, element.second, stored.shape, 128, 128);
        ASSERT_EQ(scales.at(block_of(shape, local, of, 32, 32)).second, want);
        ASSERT_EQ(scales.at(areas.at(local)).second, want);
      }
    }
  }
}

std::set<std::string> weights_with(const ModelSpec& model,
                                   std::initializer_list<const char*> parts) {
  std::set<std::string> names;
  for (const CanonicalTensor& t : model.tensors())
    for (const char* part : parts)
      if (t.name.ends_with(".weight") && t.name.find(part) != std::string::npos)
        names.insert(t.name);
  return names;
}

QuantisedLayout quantised(const std::string& layout, const ModelConfig& c, QuantFormat format,
                          BlockGrid grid, std::initializer_list<const char*> parts) {
  const auto model = model_of(c);
  auto made =
      quantise_layout(layout_of(layout, model, c), {format, grid, weights_with(*model, parts), ""});
  EXPECT_TRUE(made.has_value()) << made.error().message;
  return *std::move(made);
}

// 768 rows over 8 ranks: 96 each, blocks of 128.
TEST(QuantisedLayout, a_block_that_ranks_share_has_its_scale_on_each) {
  const ModelConfig c = qwen3_30b();
  const std::string name = "decoder.layers.0.mlp.experts.linear_fc1.weight3";
  const auto q =
      quantised("megatron:tp=8,etp=8", c, kBlock, BlockGrid::tensor, {"gate_proj", "up_proj"});
  EXPECT_EQ(shape_on(*q.stored, name, 1), "[192, 2048]");
  EXPECT_EQ(shape_on(*q.stored, name + "_scale_inv", 0), "[2, 16]");
  EXPECT_EQ(shape_on(*q.stored, name + "_scale_inv", 1), "[4, 16]");
  EXPECT_EQ(boxes_on(*q.stored, name + "_scale_inv", 1),
            "weight_scale_inv[0,2)x[0,16)@0:16,1 weight_scale_inv[0,2)x[0,16)@32:16,1");
  for (const auto& pair : q.pairs) {
    EXPECT_TRUE(pair.exact);
    EXPECT_FALSE(pair.whole);
  }
  const auto areas = block_areas(q, q.pairs[0], Rank(1));  // rows [96, 192) of gate and up
  ASSERT_EQ(areas.size(), 4);
  EXPECT_EQ(areas[0].rows, 32);
  EXPECT_EQ(areas[1].rows, 64);
  EXPECT_EQ(areas[1].scale_offset, 16);
}

TEST(QuantisedLayout, an_engine_counts_blocks_from_its_own_piece) {
  const ModelConfig c = qwen3_30b();
  const std::string name = "decoder.layers.0.mlp.experts.linear_fc1.weight3";
  const auto q =
      quantised("megatron:tp=8,etp=8", c, kBlock, BlockGrid::local, {"gate_proj", "up_proj"});
  EXPECT_EQ(shape_on(*q.stored, name + "_scale_inv", 1), "[2, 16]");
  EXPECT_FALSE(q.pairs[0].exact);
  EXPECT_TRUE(q.pairs[0].whole);
  const auto whole = quantised("megatron:tp=2,etp=2", c, kBlock, BlockGrid::local,
                               {"gate_proj", "up_proj", "q_proj", "k_proj", "v_proj"});
  for (const auto& pair : whole.pairs) EXPECT_TRUE(pair.exact);
  EXPECT_EQ(
      shape_on(*whole.stored, "decoder.layers.0.self_attention.linear_qkv.weight_scale_inv", 1),
      "[20, 16]");
}

TEST(QuantisedLayout, scales_of_whole_tensors_are_one_for_each_section) {
  QuantFormat f = kBlock;
  f.block_rows = f.block_cols = 0;
  const ModelConfig c = wide_moe();
  const auto q =
      quantised("vllm:tp=2", c, f, BlockGrid::local, {"q_proj", "k_proj", "v_proj", "experts"});
  EXPECT_EQ(shape_on(*q.stored, "model.layers.1.self_attn.qkv_proj.weight_scale", 1), "[3]");
  EXPECT_EQ(shape_on(*q.stored, "model.layers.1.mlp.experts.routed_experts.w13_weight_scale", 1),
            "[10, 2]");
  EXPECT_EQ(shape_on(*q.stored, "model.layers.1.mlp.experts.routed_experts.w2_weight_scale", 1),
            "[10]");
}

// vLLM 0.32 and SGLang 0.5.23 create [E, shards of w13], one shard where there is no gate.
TEST(QuantisedLayout, scales_of_experts_without_gates_are_a_column) {
  QuantFormat f = kBlock;
  f.block_rows = f.block_cols = 0;
  for (const char* layout : {"vllm:tp=2", "sglang:tp=2", "sglang:tp=2,transposed=1"}) {
    const auto q = quantised(layout, tiny_nemotron(), f, BlockGrid::local, {"mixer.experts"});
    const std::string at =
        std::string("model.layers.1.mixer.experts.") + (layout[0] == 'v' ? "routed_experts." : "");
    EXPECT_EQ(shape_on(*q.stored, at + "w13_weight_scale", 1), "[8, 1]") << layout;
    EXPECT_EQ(shape_on(*q.stored, at + "w2_weight_scale", 1), "[8]") << layout;
  }
  const auto nvfp4 = quantised("vllm:tp=1", tiny_nemotron(), *quant_format_from_name("nvfp4"),
                               BlockGrid::local, {"mixer.experts"});
  EXPECT_EQ(
      shape_on(*nvfp4.stored, "model.layers.1.mixer.experts.routed_experts.w13_weight_scale_2", 0),
      "[8, 1]");
  EXPECT_EQ(
      shape_on(*nvfp4.stored, "model.layers.1.mixer.experts.routed_experts.w2_weight_scale_2", 0),
      "[8]");
}

TEST(QuantisedLayout, swizzled_scales_fill_tiles_and_are_never_planned) {
  const QuantFormat f{.order = ScaleOrder::swizzled};
  const ModelConfig c = qwen3_30b();
  const auto q = quantised("vllm:tp=8", c, f, BlockGrid::local, {"experts"});
  const std::string w13 = "model.layers.0.mlp.experts.routed_experts.w13_weight";
  EXPECT_EQ(shape_on(*q.stored, w13, 0), "[128, 192, 2048]");
  EXPECT_EQ(shape_on(*q.stored, w13 + "_scale", 0), "[128, 256, 64]");
  EXPECT_FALSE(q.pairs[0].exact);
  const auto areas = block_areas(q, q.pairs[0], Rank(0));
  ASSERT_EQ(areas.size(), 128);
  EXPECT_EQ(areas[1].rows, 192);
  EXPECT_EQ(areas[1].scale_offset, 256 * 64);
  EXPECT_TRUE(check_shard_map(*q.stored, Rank(0)));
}

TEST(QuantisedLayout, tensors_may_have_formats_of_their_own) {
  const ModelConfig c = tiny_dense();
  const auto model = model_of(c);
  const std::string self = "model.layers.0.self_attn.", o = self + "o_proj.weight";
  QuantChoice choice{kBlock, BlockGrid::tensor, {o}, ""};
  for (const char* name : {"q_proj", "k_proj", "v_proj"})
    choice.tensors.insert(self + name + ".weight");
  choice.others[o] = *quant_format_from_name("nvfp4");
  EXPECT_EQ(to_string(choice), "fp8_block and nvfp4");
  const auto q = quantise_layout(layout_of("vllm:tp=1", model, c), choice);
  ASSERT_TRUE(q.has_value()) << q.error().message;
  ASSERT_EQ(q->pairs.size(), 2U);
  for (const QuantisedLayout::Pair& pair : q->pairs) {
    const bool is_o = q->values->slot(pair.values).name == o;
    EXPECT_EQ(pair.format, is_o ? choice.others[o] : kBlock);
    EXPECT_EQ(q->stored->slot(pair.data).dtype, is_o ? DType::f4 : DType::f8_e4m3);
    EXPECT_EQ(q->stored->slot(pair.scales).dtype, is_o ? DType::f8_e4m3 : DType::f32);
    EXPECT_EQ(pair.factor.value() >= 0, is_o);
  }
  // One local tensor has one format.
  choice.others[self + "k_proj.weight"] = choice.others[o];
  const auto mixed = quantise_layout(layout_of("vllm:tp=1", model, c), choice);
  ASSERT_FALSE(mixed.has_value());
  EXPECT_THAT(mixed.error().message, HasSubstr("is to be quantised as nvfp4"));
}

TEST(QuantisedLayout, what_cannot_be_quantised_says_why) {
  const ModelConfig c = tiny_dense();
  const auto model = model_of(c);
  const auto error = [&](const std::string& layout, QuantFormat f, std::set<std::string> names,
                         BlockGrid grid = BlockGrid::local) {
    auto made = quantise_layout(layout_of(layout, model, c), {f, grid, std::move(names), ""});
    return made ? "none" : made.error().message;
  };
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  EXPECT_THAT(error("hf", kBlock, {"model.nothing"}),
              HasSubstr("'model.nothing' is to be quantis"));
  EXPECT_THAT(error("hf", kBlock, {"model.norm.weight"}), HasSubstr("not a matrix or a stack of"));
  EXPECT_THAT(error("vllm:tp=1", kBlock, {q}),
              HasSubstr("holds '" + q + "', which is to be quantised as fp8_block, and 'model."));
  EXPECT_THAT(error("hf", {.order = ScaleOrder::swizzled}, {q}, BlockGrid::tensor),
              HasSubstr("their grid must be local"));
  const QuantFormat f4{.data = DType::f4};
  EXPECT_EQ(error("hf", f4, {q}), "none");
  // 32 columns of o_proj over 32 ranks would be one each; down_proj's 24 over 8 are 3.
  EXPECT_THAT(error("megatron:tp=8", f4, {"model.layers.0.mlp.down_proj.weight"}),
              HasSubstr("2 F4 elements share a byte"));
}

}  // namespace
}  // namespace reshard
