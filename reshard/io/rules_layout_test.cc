// SPDX-License-Identifier: Apache-2.0
// Protects: rules say what a family says: a whole engine, fused, stacked, padded, in stages, as a
// file; and each thing that rules can do is what its words say, element by element.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"
#include "reshard/io/rules_file.h"
#include "reshard/model/config_values.h"
#include "reshard/model/families.h"
#include "reshard/model/layout_diff.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// vLLM's Qwen3MoeForCausalLM.
constexpr const char* kQwen3Moe = R"({
  "axes": [{"name": "tp", "size": 1}, {"name": "pp", "size": 1}, {"name": "dp", "size": 1}],
  "keys": [{"name": "ep"}],
  "require": [{"that": "ep == 1 || ep == tp * dp", "says": "ep must be 1 or tp * dp"}],
  "rules": [
    {"match": "model.embed_tokens.weight", "pad": [{"dim": 0, "multiple": 64}],
     "cuts": [{"dim": 0, "axes": ["tp"]}]},
    {"match": "lm_head.weight", "pad": [{"dim": 0, "multiple": 64}],
     "cuts": [{"dim": 0, "axes": ["tp"]}]},
    {"match": "model.norm.weight"},
    {"match": "model.layers.#.self_attn.q_proj.weight",
     "name": "model.layers.$1.self_attn.qkv_proj.weight",
     "cuts": [{"dim": 0, "axes": ["tp"]}],
     "with": [
       {"match": "model.layers.#.self_attn.k_proj.weight",
        "cuts": [{"dim": 0, "axes": ["tp"], "rule": "spread", "granule": "head_dim"}]},
       {"match": "model.layers.#.self_attn.v_proj.weight",
        "cuts": [{"dim": 0, "axes": ["tp"], "rule": "spread",
                  "granule": "extent / num_key_value_heads"}]}],
     "where": [{"axis": "pp", "number": 1, "of": "num_hidden_layers", "rest": "before_last"}]},
    {"match": "model.layers.#.self_attn.o_proj.weight", "cuts": [{"dim": 1, "axes": ["tp"]}],
     "where": [{"axis": "pp", "number": 1, "of": "num_hidden_layers", "rest": "before_last"}]},
    {"match": "model.layers.#.mlp.experts.#.gate_proj.weight", "each": 2, "stack": 1,
     "name": "model.layers.$1.mlp.experts.routed_experts.w13_weight",
     "cuts": [{"dim": 0, "axes": ["dp", "tp"], "combine": "flattened", "when": "ep > 1"},
              {"dim": 1, "axes": ["dp", "tp"], "combine": "flattened", "when": "ep == 1"}],
     "with": [
       {"match": "model.layers.#.mlp.experts.#.up_proj.weight", "each": 2,
        "cuts": [{"dim": 0, "axes": ["dp", "tp"], "combine": "flattened", "when": "ep > 1"},
                 {"dim": 1, "axes": ["dp", "tp"], "combine": "flattened", "when": "ep == 1"}]}],
     "where": [{"axis": "pp", "number": 1, "of": "num_hidden_layers", "rest": "before_last"}]},
    {"match": "model.layers.#.mlp.experts.#.down_proj.weight", "each": 2,
     "name": "model.layers.$1.mlp.experts.routed_experts.w2_weight",
     "cuts": [{"dim": 0, "axes": ["dp", "tp"], "combine": "flattened", "when": "ep > 1"},
              {"dim": 2, "axes": ["dp", "tp"], "combine": "flattened", "when": "ep == 1"}],
     "where": [{"axis": "pp", "number": 1, "of": "num_hidden_layers", "rest": "before_last"}]},
    {"match": "model.layers.#.*",
     "where": [{"axis": "pp", "number": 1, "of": "num_hidden_layers", "rest": "before_last"}]}
  ]})";

class Qwen3Moe : public ::testing::TestWithParam<std::string> {};

TEST_P(Qwen3Moe, by_rules_is_the_family) {
  const Model model = *open_model("qwen3-30b-a3b", {.layers = 7});
  const auto family = make_layout("vllm:" + GetParam(), model);
  ASSERT_TRUE(family) << family.error().message;
  ConfigValues values;
  values.numbers = {{"head_dim", 128}, {"num_key_value_heads", 4}, {"num_hidden_layers", 7}};
  const auto rules = parse_rules(kQwen3Moe);
  ASSERT_TRUE(rules) << rules.error().message;
  FamilyInput input{model.tensors};
  input.values = &values;
  const auto layout = rules_layout(*parse_layout("rules:x.json," + GetParam()), input, *rules);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_THAT(diff_layouts(**family, *layout), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Sizes, Qwen3Moe,
                         ::testing::Values("tp=1", "tp=2", "tp=4", "tp=8", "tp=16", "tp=2,pp=3",
                                           "tp=4,ep=4", "tp=2,dp=2", "tp=2,dp=2,ep=4",
                                           "pp=5,tp=2,offset=3"));

/// The canonical elements of a local tensor on one rank, row by row; -1 is padding.
std::vector<Index> elements(const ModelLayout& layout, SlotId id, Rank r) {
  const LocalTensor local = layout.local(id, r);
  std::vector<Index> out(static_cast<std::size_t>(volume(local.shape)), -1);
  for (const Fragment& f : local.fragments) {
    const Dims& shape = layout.model()[f.tensor].shape;
    for (Index k = 0; k < f.box.volume(); ++k) {
      Index canonical = 0, at = f.where.offset, rest = k;
      for (int i = f.box.rank() - 1, minor = 1; i >= 0; --i) {
        const Index within = rest % f.box[i].size();
        rest /= f.box[i].size();
        canonical += (f.box[i].begin() + within) * minor;
        at += within * f.where.strides[i];
        minor *= static_cast<int>(shape[i]);
      }
      out[static_cast<std::size_t>(at)] = 100 * f.tensor.value() + canonical;
    }
  }
  return out;
}

struct Made {
  std::shared_ptr<ModelSpec> model = std::make_shared<ModelSpec>();
  Result<ModelLayout> layout = fail(Code::unsupported, "nothing was made");
  std::vector<Index> on(Index rank) const {
    return elements(*layout, SlotId(0), Rank(static_cast<Rank::rep>(rank)));
  }
};

/// A layout over two ranks of axis tp, by one rule.
Made made(const std::vector<std::pair<std::string, Dims>>& tensors, const std::string& rule) {
  Made out;
  for (const auto& [name, shape] : tensors) EXPECT_TRUE(out.model->add(name, shape, DType::bf16));
  const auto rules =
      parse_rules(fmt::format(R"({{"axes": [{{"name": "tp", "size": 2}}], "rules": [{}]}})", rule));
  EXPECT_TRUE(rules) << rules.error().message;
  if (rules) out.layout = rules_layout(*parse_layout("rules:x.json"), {out.model}, *rules);
  return out;
}

// As SGLang's ep: experts are cut by ep and by tp / ep, all else by tp.
constexpr const char* kRefined = R"({
  "axes": [{"name": "inner", "size": "tp / ep"}, {"name": "outer", "size": "ep"}],
  "keys": [{"name": "tp"}, {"name": "ep"}],
  "require": [{"that": "tp % ep == 0", "says": "ep must divide tp"}],
  "rules": [
    {"match": "expert", "cuts": [{"dim": 0, "axes": ["outer"]}, {"dim": 1, "axes": ["inner"]}]},
    {"match": "mlp", "cuts": [{"dim": 0, "axes": ["outer", "inner"], "combine": "flattened"}],
     "when": "outer == ep"}
  ]})";

TEST(RulesLayout, sizes_of_axes_follow_from_keys) {
  Made m;
  ASSERT_TRUE(m.model->add("expert", {2, 4}, DType::bf16));
  ASSERT_TRUE(m.model->add("mlp", {4}, DType::bf16));
  const auto rules = *parse_rules(kRefined);
  const auto with = [&](const char* keys) {
    return rules_layout(*parse_layout(std::string("rules:x.json") + keys), {m.model}, rules);
  };
  m.layout = with(",tp=4,ep=2");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.layout->ranks().size(), 4);
  EXPECT_EQ(m.on(1), (std::vector<Index>{2, 3}));
  EXPECT_EQ(m.on(2), (std::vector<Index>{4, 5}));
  EXPECT_EQ(elements(*m.layout, SlotId(1), Rank(3)), (std::vector<Index>{103}));
  EXPECT_EQ(with(",tp=3,ep=2").error().message, "rules: ep must divide tp");
  EXPECT_THAT(with(",tp=4,inner=2").error().message, HasSubstr("unknown key 'inner'"));
  EXPECT_THAT(with(",tp=4,ep=0").error().message, HasSubstr("tp % ep"));
  EXPECT_EQ(with(",tp=0").error().message, "rules: inner=0 must be 1 or more");
}

TEST(RulesLayout, takes_a_part_of_each_period) {
  // Three heads of q, k and v, two rows each, of which k is taken.
  const auto m = made({{"qkv", {12}}}, R"({"match": "qkv", "name": "k",
      "take": [{"dim": 0, "begin": "extent / 6", "end": "2 * extent / 6", "period": "extent / 2"}],
      "cuts": [{"dim": 0, "axes": ["tp"]}]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.on(0), (std::vector<Index>{2, 3}));
  EXPECT_EQ(m.on(1), (std::vector<Index>{8, 9}));
}

TEST(RulesLayout, deals_out_the_rows_of_each_head) {
  // Two heads of six rows, of which a file has pairs beside each other and a rank halves.
  const auto rule = [](const std::string& turns) {
    return R"({"match": "q", "take": [{"dim": 0, "end": 6, "period": 6, "turns": )" + turns +
           R"(}], "cuts": [{"dim": 0, "axes": ["tp"], "granule": 6}]})";
  };
  const auto m = made({{"q", {12}}}, rule("2"));
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(m.on(1), (std::vector<Index>{6, 8, 10, 7, 9, 11}));
  EXPECT_EQ(made({{"q", {12}}}, rule("3")).on(0), (std::vector<Index>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(made({{"q", {12}}}, rule("1")).on(0), (std::vector<Index>{0, 1, 2, 3, 4, 5}));
  EXPECT_THAT(made({{"q", {12}}}, rule("4")).layout.error().message,
              HasSubstr("6 elements along dimension 0 cannot be dealt out in 4 turns"));
  EXPECT_THAT(made({{"q", {120000}}}, rule("2")).layout.error().message,
              HasSubstr("would be taken apart into 120000 pieces, at most 65536 may be"));
}

TEST(RulesLayout, a_fused_tensor_becomes_sections) {
  const auto m = made({{"gate_up", {8}}}, R"({"match": "gate_up", "name": "w",
      "take": [{"dim": 0, "end": "extent / 2"}], "cuts": [{"dim": 0, "axes": ["tp"]}],
      "with": [{"match": "gate_up", "shared": true, "cuts": [{"dim": 0, "axes": ["tp"]}],
                "take": [{"dim": 0, "begin": "extent / 2", "end": "extent"}]}]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 1, 4, 5}));
  EXPECT_EQ(m.on(1), (std::vector<Index>{2, 3, 6, 7}));
}

TEST(RulesLayout, cuts_parts_together) {
  const auto m = made({{"k", {3}}, {"v", {2}}}, R"({"match": "k", "name": "kv", "together": true,
      "cuts": [{"dim": 0, "axes": ["tp"], "rule": "ceil"}], "with": [{"match": "v"}]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 1, 2}));
  EXPECT_EQ(m.on(1), (std::vector<Index>{100, 101}));
}

TEST(RulesLayout, parts_alternate_by_units) {
  const auto rule = [](const char* units) {
    return fmt::format(R"({{"match": "q", "name": "qkv", "together": true, "interleave": {},
        "cuts": [{{"dim": 0, "axes": ["tp"], "even": true}}], "with": [{{"match": "k"}}]}})",
                       units);
  };
  const std::vector<std::pair<std::string, Dims>> tensors{{"q", {8}}, {"k", {4}}};
  const auto m = made(tensors, rule("2"));
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 1, 2, 3, 100, 101}));
  EXPECT_EQ(m.on(1), (std::vector<Index>{4, 5, 6, 7, 102, 103}));
  // More ranks than units: a cut through a unit, as Megatron's.
  const auto one = made(tensors, rule("\"tp / 2\""));
  EXPECT_EQ(one.on(0), (std::vector<Index>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(one.on(1), (std::vector<Index>{6, 7, 100, 101, 102, 103}));
  EXPECT_THAT(made(tensors, rule("3")).layout.error().message,
              HasSubstr("8 elements along dimension 0 are not 3 units of the same size"));
}

TEST(RulesLayout, parts_that_are_taken_apart_alternate) {
  // Two groups of two heads of one row: the tensor alternates queries and gates by head.
  const auto m = made({{"q", {8}}, {"k", {2}}}, R"({"match": "q", "name": "qkv", "together": true,
      "interleave": 2, "take": [{"dim": 0, "begin": 0, "end": 1, "period": 2}],
      "cuts": [{"dim": 0, "axes": ["tp"]}], "with": [{"match": "q", "shared": true,
      "take": [{"dim": 0, "begin": 1, "end": 2, "period": 2}]}, {"match": "k"}]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 2, 1, 3, 100}));
  EXPECT_EQ(m.on(1), (std::vector<Index>{4, 6, 5, 7, 101}));
}

TEST(RulesLayout, a_rule_holds_beside_a_tensor) {
  const auto m = made({{"l.0.norm", {2}}, {"l.0.mlp", {2}}, {"l.1.norm", {2}}, {"l.1.gate", {2}}},
                      R"({"match": "l.#.norm", "name": "$1.dense", "beside": "l.$1.mlp"},
                         {"match": "l.#.norm", "name": "$1.experts", "beside": "l.$1.gate"},
                         {"match": "*"})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.layout->slot(SlotId(0)).name, "0.dense");
  EXPECT_EQ(m.layout->slot(SlotId(2)).name, "1.experts");
  EXPECT_THAT(made({{"l.0.norm", {2}}}, R"({"match": "l.#.norm", "beside": "l.$1.mlp"})")
                  .layout.error()
                  .message,
              HasSubstr("no rule of 'x.json' matches tensor 'l.0.norm'"));
}

// As Megatron's: experts lie in a mesh of their own, and numbers count within a stage or a rank.
constexpr const char* kTwoMeshes = R"({
  "axes": [{"name": "tp", "size": 2}, {"name": "pp", "size": 2},
           {"name": "ep", "size": 2, "mesh": "experts"}, {"name": "pp", "mesh": "experts"}],
  "rules": [
    {"match": "l.#.w", "name": "layers.$1.w", "cuts": [{"dim": 0, "axes": ["tp"]}],
     "where": [{"axis": "pp", "number": 1, "of": 4, "renumber": true}]},
    {"match": "l.#.e.#", "name": "layers.$1.e$2",
     "where": [{"axis": "pp", "number": 1, "of": 4, "renumber": true},
               {"axis": "ep", "number": 2, "of": 4, "renumber": true}]},
    {"match": "l.#.stacked", "apart": true, "name": "layers.$1.s$2",
     "where": [{"axis": "pp", "number": 1, "of": 4, "renumber": true},
               {"axis": "ep", "number": 2, "of": 4, "renumber": true}]}
  ]})";

TEST(RulesLayout, meshes_lie_over_the_same_ranks) {
  Made m;
  for (int layer = 0; layer < 4; ++layer) {
    ASSERT_TRUE(m.model->add(fmt::format("l.{}.w", layer), {2}, DType::bf16));
    for (int e = 0; e < 4; ++e)
      ASSERT_TRUE(m.model->add(fmt::format("l.{}.e.{}", layer, e), {1}, DType::bf16));
  }
  ASSERT_TRUE(m.model->add("l.3.stacked", {4, 2}, DType::bf16));
  const auto rules = *parse_rules(kTwoMeshes);
  const auto layout = rules_layout(*parse_layout("rules:x.json"), {m.model}, rules);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->ranks().size(), 4);
  std::vector<std::string> held;  // of the second rank of the second stage
  for (const SlotId id : layout->slots_of(Rank(3)))
    held.push_back(fmt::format("{} = {}", layout->slot(id).name,
                               fmt::join(elements(*layout, id, Rank(3)), ",")));
  EXPECT_THAT(held, ::testing::UnorderedElementsAre(
                        "layers.0.w = 1001", "layers.0.e0 = 1300", "layers.0.e1 = 1400",
                        "layers.1.w = 1501", "layers.1.e0 = 1800", "layers.1.e1 = 1900",
                        "layers.1.s0 = 2004,2005", "layers.1.s1 = 2006,2007"));
  EXPECT_THAT(rules_layout(*parse_layout("rules:x.json,ep=4"), {m.model}, rules).error().message,
              HasSubstr("mesh 'experts' has 8 ranks, and the first one 4"));
  const auto both = parse_rules(R"({"axes": [{"name": "a", "size": 2}, {"name": "b", "size": 2,
      "mesh": "x"}], "rules": [{"match": "*", "cuts": [{"dim": 0, "axes": ["a"]}],
      "where": [{"axis": "b", "at": 0}]}]})");
  EXPECT_THAT(rules_layout(*parse_layout("rules:x.json"), {m.model}, *both).error().message,
              HasSubstr("no mesh has all of its axes (a, b)"));
}

TEST(RulesLayout, each_index_makes_a_local_tensor) {
  // Gate and up of two experts, inputs first: [2, 2, 4] becomes two of [4, 2].
  const auto m = made({{"l.3.gate_up", {2, 2, 4}}}, R"({"match": "l.#.gate_up", "apart": true,
      "name": "l.$1.fc1.$2", "take": [{"dim": 1, "end": "extent / 2"}], "dims": [1, 0],
      "cuts": [{"dim": 0, "axes": ["tp"]}],
      "with": [{"match": "l.#.gate_up", "apart": true, "shared": true, "dims": [1, 0],
                "take": [{"dim": 1, "begin": "extent / 2", "end": "extent"}],
                "cuts": [{"dim": -2, "axes": ["tp"]}]}]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  ASSERT_EQ(m.layout->num_slots(), 2);
  EXPECT_EQ(m.layout->slot(SlotId(0)).name, "l.3.fc1.0");
  EXPECT_EQ(m.layout->slot(SlotId(1)).name, "l.3.fc1.1");
  EXPECT_EQ(m.layout->stored_shape(SlotId(1), Rank(0)), (Dims{2, 2}));
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 4, 2, 6}));
  EXPECT_EQ(elements(*m.layout, SlotId(1), Rank(0)), (std::vector<Index>{8, 12, 10, 14}));
  EXPECT_EQ(elements(*m.layout, SlotId(1), Rank(1)), (std::vector<Index>{9, 13, 11, 15}));
  EXPECT_FALSE(m.layout->slot(SlotId(1)).padded);
}

TEST(RulesLayout, an_index_has_a_bias_and_parts_that_alternate) {
  const auto m = made({{"a", {3, 4}}, {"b", {3, 2}}}, R"({"match": "a", "apart": true,
      "name": "ab.$1", "together": true, "interleave": 2, "pad": [{"dim": 0, "multiple": 3}],
      "cuts": [{"dim": 0, "axes": ["tp"]}], "with": [{"match": "b", "apart": true}]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  ASSERT_EQ(m.layout->num_slots(), 3);
  EXPECT_EQ(m.layout->stored_shape(SlotId(2), Rank(0)), (Dims{4}));
  EXPECT_EQ(elements(*m.layout, SlotId(2), Rank(0)), (std::vector<Index>{8, 9, 10, 104}));
  EXPECT_EQ(elements(*m.layout, SlotId(2), Rank(1)), (std::vector<Index>{11, -1, -1, 105}));
}

TEST(RulesLayout, a_rule_is_for_tensors_of_a_shape) {
  const auto rules = R"({"match": "w.#", "shape": [2, "1 + tp"], "dims": [1, 0]},
                        {"match": "w.#", "shape": [3, 2]}, {"match": "w.#", "omit": true})";
  const auto m = made({{"w.0", {2, 3}}, {"w.1", {3, 2}}, {"w.2", {2}}, {"w.3", {2, 3, 1}}}, rules);
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  ASSERT_EQ(m.layout->num_slots(), 2);
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(elements(*m.layout, SlotId(1), Rank(0)),
            (std::vector<Index>{100, 101, 102, 103, 104, 105}));
  EXPECT_TRUE(m.layout->omits(TensorId(2)) && m.layout->omits(TensorId(3)));
  EXPECT_THAT(made({{"w", {2}}}, R"({"match": "w", "shape": ["hidden"]})").layout.error().message,
              HasSubstr("hidden has no value here"));
}

TEST(RulesLayout, transposes) {
  const auto m = made({{"w", {2, 3}}}, R"({"match": "w", "dims": [1, 0]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 3, 1, 4, 2, 5}));
}

TEST(RulesLayout, stacks_by_number_not_by_name) {
  std::vector<std::pair<std::string, Dims>> experts;
  for (const int e : {10, 2, 1, 0, 3, 4, 5, 6, 7, 8, 9, 11})
    experts.emplace_back(fmt::format("layers.7.experts.{}.w", e), Dims{1});
  const auto m = made(experts, R"({"match": "layers.#.experts.#.w", "each": 2, "name": "e.$1",
      "cuts": [{"dim": 0, "axes": ["tp"]}]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.layout->slot(SlotId(0)).name, "e.7");
  EXPECT_EQ(m.on(0), (std::vector<Index>{300, 200, 100, 400, 500, 600}));
  experts.pop_back();
  experts.erase(experts.begin() + 1);
  EXPECT_THAT(made(experts, R"({"match": "layers.#.experts.#.w", "each": 2, "name": "e"})")
                  .layout.error()
                  .message,
              HasSubstr("has no tensor 2 of 'layers.#.experts.#.w', but tensor 3"));
}

TEST(RulesLayout, pads_to_what_the_parts_need) {
  const auto m = made({{"w", {8}}}, R"({"match": "w", "pad": [{"dim": 0, "multiple": 3}],
      "cuts": [{"dim": 0, "axes": ["tp"], "even": true}]})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.on(0), (std::vector<Index>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(m.on(1), (std::vector<Index>{6, 7, -1, -1, -1, -1}));
  EXPECT_TRUE(m.layout->slot(SlotId(0)).padded);
}

TEST(RulesLayout, is_on_the_first_and_the_last_stage) {
  auto model = std::make_shared<ModelSpec>();
  ASSERT_TRUE(model->add("w", {2}, DType::bf16));
  const auto rules = parse_rules(R"({"axes": [{"name": "pp", "size": 4}], "rules": [
      {"match": "w", "where": [{"axis": "pp", "at": 0, "or_last": true}]}]})");
  ASSERT_TRUE(rules) << rules.error().message;
  const auto layout = rules_layout(*parse_layout("rules:x.json"), {model}, *rules);
  ASSERT_TRUE(layout) << layout.error().message;
  for (const int rank : {0, 1, 2, 3})
    EXPECT_EQ(layout->slots_of(Rank(rank)).size(), rank == 0 || rank == 3 ? 1u : 0u);
}

TEST(RulesLayout, leaves_out_what_it_says) {
  const auto m = made({{"a.inv_freq", {2}}, {"w", {2}}},
                      R"({"match": "*.inv_freq", "omit": true}, {"match": "*"})");
  ASSERT_TRUE(m.layout) << m.layout.error().message;
  EXPECT_EQ(m.layout->num_slots(), 1);
  EXPECT_TRUE(m.layout->omits(TensorId(0)));
}

TEST(RulesLayout, refuses_what_does_not_fit) {
  const auto error = [](const std::vector<std::pair<std::string, Dims>>& tensors,
                        const std::string& rule) {
    const auto m = made(tensors, rule);
    return m.layout ? "no error" : m.layout.error().message;
  };
  EXPECT_THAT(
      error({{"w", {5}}}, R"({"match": "w", "cuts": [{"dim": 0, "axes": ["tp"], "even": true}]})"),
      HasSubstr("5 elements of 5 cannot be cut evenly into 2"));
  EXPECT_THAT(error({{"w", {5}}}, R"({"match": "w", "take": [{"dim": 0, "end": 6}]})"),
              HasSubstr("elements [0, 6) of each 5 cannot be taken of 5"));
  EXPECT_THAT(error({{"w", {5}}}, R"({"match": "w", "take": [{"dim": 0, "end": 1, "period": 2}]})"),
              HasSubstr("elements [0, 1) of each 2 cannot be taken of 5"));
  EXPECT_THAT(
      error({{"w", {4}}},
            R"({"match": "w", "cuts": [{"dim": 0, "axes": ["tp"], "granule": "head_dim"}]})"),
      HasSubstr("rules: tensor 'w': 'head_dim': head_dim has no value here"));
  EXPECT_THAT(error({{"a", {4}}}, R"({"match": "a", "name": "x", "with": [{"match": "b"}]})"),
              HasSubstr("no tensor that matches 'b' beside it"));
  EXPECT_THAT(error({{"a", {4, 2}}, {"b", {4, 3}}},
                    R"({"match": "a", "name": "x", "with": [{"match": "b"}]})"),
              HasSubstr("its parts differ in more than dimension 0"));
  EXPECT_THAT(
      error({{"l.0.w", {4}}, {"l.1.w", {3}}}, R"({"match": "l.#.w", "each": 1, "name": "x"})"),
      HasSubstr("'l.1.w' is [3], and 'l.0.w' beside it is [4]"));
  EXPECT_THAT(error({{"w", {4}}}, R"({"match": "w", "apart": true, "name": "w.$1"})"),
              HasSubstr("'w' is [4]: apart needs a second dimension"));
  EXPECT_THAT(error({{"w", {4, 2}}}, R"({"match": "w", "apart": true, "name": "w"})"),
              HasSubstr("'w'"));
  EXPECT_THAT(error({{"w", {4, 2}}}, R"({"match": "w", "apart": true, "name": "w.$1",
                "cuts": [{"dim": 1, "axes": ["tp"]}]})"),
              HasSubstr("cut of dimension 1 but the tensor has 1"));
  EXPECT_THAT(
      error({{"w", {Index{1} << 21, 2}}}, R"({"match": "w", "apart": true, "name": "w.$1"})"),
      HasSubstr("more than 1048576 local tensors"));
  EXPECT_THAT(error({{"a", {2, 2}}, {"b", {3, 2}}}, R"({"match": "a", "apart": true,
                "name": "ab.$1", "with": [{"match": "b", "apart": true}]})"),
              HasSubstr("no tensor that matches 'a' beside it"));
  EXPECT_THAT(error({{"w", {4}}}, R"({"match": "w", "cuts": [
                {"dim": 0, "axes": ["tp"], "when": "tp > 1"}, {"dim": 0, "axes": ["tp"], "when": 1}]})"),
              HasSubstr("apply together"));
}

TEST(RulesLayout, of_a_requirement_says_its_words) {
  const Model model = *open_model("qwen3-30b-a3b", {.layers = 1});
  const auto layout = rules_layout(*parse_layout("rules:x.json,tp=4,ep=3"), {model.tensors},
                                   *parse_rules(kQwen3Moe));
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().message, "rules: ep must be 1 or tp * dp");
}

}  // namespace
}  // namespace reshard
