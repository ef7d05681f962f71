// SPDX-License-Identifier: Apache-2.0
// Protects: the rules of each framework, by hand-worked numbers, and the messages of rejected
// layouts.
#include "reshard/model/families.h"
#include "reshard/model/families/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "reshard/model/canonical.h"
#include "reshard/model/configs_testutil.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// "q[0,8)+0 k[0,4)+8": the fragments of a local tensor by dimension-0 rows of the canonical
/// tensor, with the row of the local tensor where each begins. The tensor's short name is its
/// last-but-one part.
std::string rows(const ModelLayout& layout, const std::string& local, int rank) {
  std::string text;
  for (SlotId id : layout.slots_of(Rank(rank))) {
    if (layout.slot(id).name != local) continue;
    const LocalTensor t = layout.local(id, Rank(rank));
    auto fragments = t.fragments;
    std::sort(fragments.begin(), fragments.end(),
              [](const Fragment& a, const Fragment& b) { return a.where.offset < b.where.offset; });
    for (const Fragment& f : fragments) {
      std::string name = layout.model()[f.tensor].name;
      name.resize(name.rfind('.'));
      name = name.substr(name.rfind('.') + 1);
      text += (text.empty() ? "" : " ") + name + to_string(f.box[0]) + "+" +
              std::to_string(f.where.offset / row_major(t.shape)[0]);
    }
    return text + " of " + std::to_string(t.shape[0]);
  }
  return "absent";
}

bool has(const ModelLayout& layout, const std::string& local, int rank) {
  return rows(layout, local, rank) != "absent";
}

const std::string kQkv = "decoder.layers.0.self_attention.linear_qkv.weight";

TEST(Megatron, qkv_interleaves_query_groups) {
  const ModelConfig c = tiny_dense();
  const auto l = layout_of("megatron:tp=2", model_of(c), c);
  EXPECT_EQ(rows(*l, kQkv, 1),
            "q_proj[16,24)+0 k_proj[8,12)+8 v_proj[8,12)+12 q_proj[24,32)+16 k_proj[12,16)+24 "
            "v_proj[12,16)+28 of 32");
}

TEST(Megatron, fewer_groups_than_tp_cuts_inside_heads) {
  ModelConfig c = tiny_dense();
  c.num_key_value_heads = 1;  // rows: 32 q, 4 k, 4 v = 40; over 8 ranks 5 each.
  const auto l = layout_of("megatron:tp=8", model_of(c), c);
  EXPECT_EQ(rows(*l, kQkv, 0), "q_proj[0,5)+0 of 5");
  EXPECT_EQ(rows(*l, kQkv, 6), "q_proj[30,32)+0 k_proj[0,3)+2 of 5");
  EXPECT_EQ(rows(*l, kQkv, 7), "k_proj[3,4)+0 v_proj[0,4)+1 of 5");
}

TEST(Megatron, gate_and_up_are_cut_then_stacked) {
  const ModelConfig c = tiny_dense();
  const auto l = layout_of("megatron:tp=4", model_of(c), c);
  EXPECT_EQ(rows(*l, "decoder.layers.0.mlp.linear_fc1.weight", 2),
            "gate_proj[12,18)+0 up_proj[12,18)+6 of 12");
}

TEST(Megatron, experts_have_a_grid_of_their_own) {
  const ModelConfig c = tiny_moe();
  const auto l = layout_of("megatron:tp=2,cp=2,ep=2,etp=1", model_of(c), c);
  ASSERT_EQ(l->ranks().size(), 4);
  // ep = rank % 2 although tp and cp vary; rank 1 has global experts 5 to 9 as its 0 to 4.
  EXPECT_EQ(rows(*l, "decoder.layers.1.mlp.experts.linear_fc1.weight4", 1),
            "gate_proj[0,8)+0 up_proj[0,8)+8 of 16");
  const auto tensor_of = [&](int rank) {
    for (SlotId id : l->slots_of(Rank(rank)))
      if (l->slot(id).name == "decoder.layers.1.mlp.experts.linear_fc2.weight0")
        return l->model()[l->local(id, Rank(rank)).fragments[0].tensor].name;
    return std::string("absent");
  };
  for (int r = 0; r < 4; ++r)
    EXPECT_EQ(tensor_of(r),
              "model.layers.1.mlp.experts." + std::string(r % 2 ? "5" : "0") + ".down_proj.weight");
}

TEST(Megatron, etp_defaults_to_tp) {
  const ModelConfig c = tiny_moe();
  const auto l = layout_of("megatron:tp=2,ep=2", model_of(c), c);
  EXPECT_EQ(l->ranks().size(), 4);
  EXPECT_EQ(rows(*l, "decoder.layers.1.mlp.experts.linear_fc1.weight0", 3),
            "gate_proj[4,8)+0 up_proj[4,8)+4 of 8");
}

TEST(Megatron, pipeline_stages_and_tied_output) {
  ModelConfig c = tiny_dense();
  c.tie_word_embeddings = true;
  const auto two = layout_of("megatron:pp=2,first=3", model_of(c), c);
  EXPECT_TRUE(has(*two, "decoder.layers.2.mlp.linear_fc2.weight", 0));
  EXPECT_FALSE(has(*two, "decoder.layers.1.mlp.linear_fc2.weight", 1));
  EXPECT_EQ(rows(*two, "embedding.word_embeddings.weight", 0), "embed_tokens[0,100)+0 of 128");
  EXPECT_EQ(rows(*two, "output_layer.weight", 1), "embed_tokens[0,100)+0 of 128");
  EXPECT_FALSE(has(*two, "embedding.word_embeddings.weight", 1));
  EXPECT_FALSE(has(*layout_of("megatron:tp=2", model_of(c), c), "output_layer.weight", 0));
}

TEST(Canonical, every_layer_must_be_described) {
  ModelConfig c = tiny_dense();
  c.num_hidden_layers = 6;
  const auto model = canonical_tensors(c);
  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message, testing::HasSubstr("6 layers but describes only 4"));
}

TEST(Megatron, layers_that_do_not_divide_count_embedding_and_loss) {
  ModelConfig c = tiny_dense();
  c.num_hidden_layers = 6;
  c.layers.assign(6, c.layers[0]);
  const auto l = layout_of("megatron:pp=4", model_of(c), c);
  const auto layers = [&](int rank) {
    int n = 0;
    while (has(*l, "decoder.layers." + std::to_string(n) + ".mlp.linear_fc2.weight", rank)) ++n;
    return n;
  };
  EXPECT_THAT((std::vector<int>{layers(0), layers(1), layers(2), layers(3)}),
              ElementsAre(1, 2, 2, 1));
}

TEST(Megatron, norm_names_of_both_specs) {
  const ModelConfig c = tiny_moe();
  const auto te = layout_of("megatron", model_of(c), c),
             local = layout_of("megatron:norms=separate", model_of(c), c);
  EXPECT_TRUE(has(*te, "decoder.layers.0.mlp.linear_fc1.layer_norm_weight", 0));
  EXPECT_TRUE(has(*te, "decoder.layers.1.pre_mlp_layernorm.weight", 0));
  EXPECT_FALSE(has(*te, "decoder.layers.0.input_layernorm.weight", 0));
  EXPECT_TRUE(has(*local, "decoder.layers.0.input_layernorm.weight", 0));
  EXPECT_TRUE(has(*local, "decoder.layers.0.pre_mlp_layernorm.weight", 0));
}

TEST(Vllm, kv_heads_are_replicated_above_their_number) {
  const ModelConfig c = tiny_dense();
  const auto l = layout_of("vllm:tp=8", model_of(c), c);
  EXPECT_EQ(rows(*l, "model.layers.0.self_attn.qkv_proj.weight", 5),
            "q_proj[20,24)+0 k_proj[8,12)+4 v_proj[8,12)+8 of 12");
}

TEST(Vllm, vocabulary_pads_to_64_that_tp_divides) {
  const ModelConfig c = tiny_dense();
  const auto l = layout_of("vllm:tp=8", model_of(c), c);
  EXPECT_EQ(rows(*l, "model.embed_tokens.weight", 6), "embed_tokens[96,100)+0 of 16");
  EXPECT_EQ(rows(*l, "model.embed_tokens.weight", 7), " of 16");
}

TEST(Vllm, experts_without_ep_are_cut_over_tp_and_dp) {
  const ModelConfig c = tiny_moe();
  const auto l = layout_of("vllm:tp=2,dp=2", model_of(c), c);
  const auto w13 = [&](int rank) {
    for (SlotId id : l->slots_of(Rank(rank)))
      if (l->slot(id).name == "model.layers.1.mlp.experts.routed_experts.w13_weight")
        return l->local(id, Rank(rank));
    return LocalTensor{};
  };
  const LocalTensor t = w13(3);
  EXPECT_EQ(t.shape, (Dims{10, 4, 16}));
  ASSERT_EQ(t.fragments.size(), 20u);
  EXPECT_EQ(t.fragments[0].box, (Box{{6, 8}, {0, 16}}));
  EXPECT_EQ(t.fragments[11].where.offset, 1 * 4 * 16 + 2 * 16);
}

TEST(Vllm, experts_that_do_not_divide_go_to_the_first_ranks) {
  const ModelConfig c = tiny_moe();
  const auto l = layout_of("vllm:tp=4,ep=4", model_of(c), c);
  std::vector<Index> sizes;
  for (int r = 0; r < 4; ++r)
    for (SlotId id : l->slots_of(Rank(r)))
      if (l->slot(id).name == "model.layers.2.mlp.experts.routed_experts.w2_weight")
        sizes.push_back(l->local_shape(id, Rank(r))[0]);
  EXPECT_THAT(sizes, ElementsAre(3, 3, 2, 2));
}

void expect_valid(const std::string& text, const ModelConfig& c) {
  const auto layout = layout_of(text, model_of(c), c);
  layout->ranks().for_each([&](Rank r) {
    const auto ok = check_shard_map(*layout, r);
    EXPECT_TRUE(ok) << text << ": " << ok.error().message;
  });
}

TEST(Families, every_rank_of_every_layout_has_a_valid_shard_map) {
  for (const char* text : {"megatron:tp=2,pp=2", "megatron:tp=8", "megatron:cp=2,dp=3", "vllm:tp=8",
                           "vllm:tp=4,replicas=3", "hf:shards=3", "megatron:offset=5,tp=2"}) {
    expect_valid(text, tiny_dense());
    expect_valid(text, tiny_moe());
  }
  for (const char* text : {"megatron:tp=4,ep=2,etp=1,pp=4", "megatron:etp=2,ep=5,dp=10",
                           "vllm:tp=2,dp=2", "vllm:tp=2,dp=2,ep=4", "vllm:tp=2,dp=2,ep=2"})
    expect_valid(text, tiny_moe());
}

TEST(Families, say_what_is_wrong_and_what_would_be_right) {
  const ModelConfig dense = tiny_dense(), moe = tiny_moe();
  const auto message = [&](const std::string& text, const ModelConfig& c) {
    const auto l = try_layout(text, model_of(c), c);
    return l ? std::string("accepted") : l.error().message;
  };
  EXPECT_EQ(
      message("megatron:tp=3", dense),
      "megatron: tp=3 does not divide num_attention_heads=8; tp=3 is neither a multiple nor a "
      "divisor of num_key_value_heads=4; tp=3 does not divide the rows of linear_qkv=64");
  EXPECT_THAT(message("megatron:pp=2,first=4", dense),
              HasSubstr("first=4 leaves 0 of num_hidden_layers=4 to 1 other stage"));
  EXPECT_THAT(message("megatron:pp=5", dense), HasSubstr("does not divide num_hidden_layers=4"));
  EXPECT_THAT(
      message("megatron:tpp=2", dense),
      HasSubstr("unknown key 'tpp' (did you mean 'tp'?); known keys are account_embedding, "));
  EXPECT_THAT(message("megatron:tp=0", dense), HasSubstr("tp=0 must be a whole number from 1"));
  EXPECT_THAT(message("megatron:tp=x", dense), HasSubstr("tp=x"));
  EXPECT_THAT(message("megatron:ep=2", dense), HasSubstr("LlamaForCausalLM has none"));
  EXPECT_THAT(message("megatron:ep=4", moe), HasSubstr("ep=4 does not divide num_experts=10"));
  EXPECT_THAT(message("megatron:ep=2,dp=3", moe), HasSubstr("etp*ep=2 does not divide tp*cp*dp=3"));
  EXPECT_THAT(message("megatron:norms=x", moe),
              HasSubstr("norms=x must be one of fused, separate"));
  EXPECT_THAT(message("vllm:tp=16", dense),
              HasSubstr("tp=16 does not divide num_attention_heads=8"));
  EXPECT_THAT(message("vllm:tp=2,dp=8", moe), HasSubstr("replicas=N"));
  EXPECT_THAT(message("vllm:tp=2,dp=2,ep=3", moe), HasSubstr("ep=3 must be 1, tp=2 or tp*dp=4"));
  EXPECT_THAT(message("hf:shards=0", dense), HasSubstr("shards=0"));
}

TEST(Families, experts_that_no_layer_has_ask_for_nothing) {
  // As DeepSeek-V3 with --layers 2: it counts experts, and its first layers are dense.
  ModelConfig c = tiny_deepseek();
  c.layers.assign(2, {Mixer::mla, Ffn::dense});
  c.num_hidden_layers = 2;
  c.num_experts = 7;
  c.shared_expert_size = 7;
  for (const char* text : {"megatron:tp=2,ep=2,etp=1,mtp=0", "vllm:tp=2,ep=2", "vllm:tp=8",
                           "sglang:tp=4,ep=2", "sglang:tp=8"})
    expect_valid(text, c);
  const auto error = [&](const char* text) {
    const auto l = try_layout(text, model_of(c), c);
    return l ? std::string("accepted") : l.error().message;
  };
  // Modules for multi-token prediction have some.
  for (const char* text : {"megatron:tp=2,ep=2,etp=1", "vllm:tp=2,mtp=1", "sglang:tp=2,mtp=1"})
    EXPECT_THAT(error(text), HasSubstr("experts"));
}

TEST(Families, engines_refuse_more_tensor_ranks_than_experts_where_their_modules_do) {
  ModelConfig moe = tiny_moe(), mixtral = tiny_moe();
  moe.num_experts = mixtral.num_experts = 4;
  mixtral.model_type = "mixtral";
  mixtral.layers.assign(4, {Mixer::attention, Ffn::experts});
  const auto error = [](const char* text, const ModelConfig& c) {
    const auto l = try_layout(text, model_of(c), c);
    return l ? std::string("accepted") : l.error().message;
  };
  for (const char* text : {"vllm:tp=8", "sglang:tp=8"}) {
    EXPECT_THAT(error(text, moe), HasSubstr("tp=8 exceeds num_experts=4")) << text;
    EXPECT_EQ(error(text, mixtral), "accepted") << text;
  }
  EXPECT_EQ(error("vllm:tp=4", moe), "accepted");
  moe.layers.assign(4, {Mixer::attention, Ffn::dense});
  EXPECT_EQ(error("vllm:tp=8", moe), "accepted");
}

TEST(Families, heads_must_divide_in_hybrids_without_attention_too) {
  ModelConfig c = tiny_nemotron();
  std::erase_if(c.layers, [](const LayerKind& k) { return k.mixer == Mixer::attention; });
  c.num_hidden_layers = static_cast<Index>(c.layers.size());
  c.num_mtp = 0;
  c.mtp_block.clear();
  c.num_attention_heads = c.num_key_value_heads = 3;
  for (const char* text : {"vllm:tp=2", "megatron:tp=2,etp=1"}) {
    const auto l = try_layout(text, model_of(c), c);
    ASSERT_FALSE(l) << text;
    EXPECT_THAT(l.error().message, HasSubstr("tp=2 does not divide num_attention_heads=3"));
  }
}

TEST(Families, all_violations_of_a_layout_are_said) {
  const ModelConfig c = tiny_moe();
  const auto message = [&](const std::string& text) {
    return try_layout(text, model_of(c), c).error().message;
  };
  EXPECT_EQ(message("vllm:tp=x,pp=0,qq=1,zz=2,dtype=int8").substr(0, 30),
            "vllm: unknown keys 'qq', 'zz';");
  for (const char* part : {"tp=x must be", "pp=0 must be", "dtype=int8 must be"})
    EXPECT_THAT(message("vllm:tp=x,pp=0,qq=1,zz=2,dtype=int8"), HasSubstr(part));
  for (const char* part :
       {"etp*ep=12 does not divide tp*cp*dp=9", "tp=3 does not divide num_attention_heads=8",
        "ep=4 does not divide num_experts=10", "pp=5 does not divide num_hidden_layers=4"})
    EXPECT_THAT(message("megatron:tp=3,ep=4,dp=3,pp=5"), HasSubstr(part));
  for (const char* part : {"dp=2 does not divide tp=5", "tp=5 does not divide intermediate_size=24",
                           "pp=9 exceeds num_hidden_layers=4"})
    EXPECT_THAT(message("sglang:tp=5,dp=2,pp=9"), HasSubstr(part));
}

TEST(LayoutSpec, parses_and_prints) {
  EXPECT_EQ(to_string(*parse_layout("megatron:tp=4,pp=2")), "megatron:pp=2,tp=4");
  EXPECT_EQ(to_string(*parse_layout("hf")), "hf");
  EXPECT_EQ(to_string(*parse_layout("rules:a/b.json,tp=2")), "rules:a/b.json,tp=2");
  for (const char* bad : {"", ":tp=2", "megatron:", "megatron:tp", "megatron:tp=", "megatron:=2",
                          "megatron:tp=2,tp=2", "rules", "rules:"})
    EXPECT_FALSE(parse_layout(bad).has_value() && std::string(bad) != "rules") << bad;
}

TEST(Rules, cut_place_and_rename) {
  const ModelConfig c = tiny_dense();
  RuleSet set;
  set.axes = {{"tp", 2}, {"pp", 2}};
  Rule layers, rest;
  layers.match = "model.layers.#.*_proj.weight";
  layers.name = "l$1.$2";
  layers.cuts = {{-1, {"tp"}, CutRule::balanced, DimCut::Combine::sequential, 1}};
  layers.where = {{"pp", std::nullopt, 1, 2}};
  rest.match = "*";
  set.rules = {layers, rest};
  const LayoutSpec spec = *parse_layout("rules:x.json,tp=4");
  const auto layout = rules_layout(spec, {model_of(c)}, set);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->ranks().size(), 8);
  EXPECT_TRUE(has(*layout, "l3.mlp.down", 7));
  EXPECT_FALSE(has(*layout, "l3.mlp.down", 3));
  set.rules.pop_back();
  EXPECT_THAT(rules_layout(spec, {model_of(c)}, set).error().message,
              HasSubstr("no rule of 'x.json' matches tensor 'model.embed_tokens.weight'"));
}

TEST(Rules, dimensions_behind_merged_ones_count_on) {
  auto model = std::make_shared<ModelSpec>();
  ASSERT_TRUE(model->add("w", {2, 3, 4}, DType::bf16, {1}));  // [6, 4] in the file
  RuleSet set;
  set.axes = {{"tp", 2}};
  Rule all;
  all.match = "*";
  all.cuts = {{1, {"tp"}, CutRule::balanced, DimCut::Combine::sequential, 1}};
  set.rules = {all};
  const auto l = rules_layout(*parse_layout("rules:x.json"), {model}, set);
  ASSERT_TRUE(l) << l.error().message;
  EXPECT_EQ(to_string(l->fragment(l->parts_of(TensorId(0))[0], Rank(1))->box), "[0,2)x[0,3)x[2,4)");
}

TEST(Hf, shards_are_equal_parts_by_bytes) {
  auto model = std::make_shared<ModelSpec>();
  for (const auto& [name, bytes] :
       {std::pair("m.a.weight", 10), std::pair("m.b.weight", 50), std::pair("m.c.weight", 20),
        std::pair("m.d.weight", 20), std::pair("m.e.weight", 20)})
    ASSERT_TRUE(model->add(name, {bytes}, DType::u8));
  // 120 bytes in 3 parts of 40: a begins at 0, b at 10, c at 60, d at 80, e at 100.
  const auto l = hf_layout(*parse_layout("hf:shards=3"), {model});
  ASSERT_TRUE(l) << l.error().message;
  const auto shards = [&](const char* name) {
    std::string on;
    for (int r = 0; r < 3; ++r) on += has(*l, name, r) ? '0' + static_cast<char>(r) : '-';
    return on;
  };
  EXPECT_EQ(shards("m.a.weight"), "0--");
  EXPECT_EQ(shards("m.b.weight"), "0--");
  EXPECT_EQ(shards("m.c.weight"), "-1-");
  EXPECT_EQ(shards("m.d.weight"), "--2");
  EXPECT_EQ(shards("m.e.weight"), "--2");
}

TEST(Hf, copies_stand_on_the_last_shard) {
  const ModelConfig c = tiny_deepseek();
  const auto l = layout_of("hf:shards=3", model_of(c), c);
  for (int r = 0; r < 3; ++r)
    for (const char* copy : {"embed_tokens.weight", "shared_head.head.weight"})
      EXPECT_EQ(has(*l, std::string("model.layers.4.") + copy, r), r == 2) << copy << " " << r;
}

// gpt-oss' gate_up_proj is [E, H, 2I] in the file, [E, H, I, 2] in the index space.
TEST(Rules, dimensions_are_those_of_the_stored_tensor) {
  const ModelConfig c = tiny_gpt_oss();
  const auto model = model_of(c);
  const TensorId id = *model->find("model.layers.0.mlp.experts.gate_up_proj");
  RuleSet set;
  set.axes = {{"tp", 4}};
  Rule experts, rest;
  experts.match = "*.experts.gate_up_proj";
  experts.cuts = {{-1, {"tp"}, CutRule::balanced, DimCut::Combine::sequential, 1}};
  rest.match = "*";
  set.rules = {experts, rest};
  const auto held = [&](const std::string& layout) {
    const auto l = rules_layout(*parse_layout(layout), {model}, set);
    if (!l) return l.error().message;
    const auto place = l->parts_of(id)[0];
    return to_string(l->fragment(place, Rank(1))->box) + " as " +
           to_string(l->stored_shape(place.slot, Rank(1)));
  };
  EXPECT_EQ(held("rules:x.json"), "[0,4)x[0,16)x[2,4)x[0,2) as [4, 16, 4]");
  EXPECT_THAT(held("rules:x.json,tp=3"), HasSubstr("would be cut inside one"));
  set.rules[0].cuts[0].granule = 2;
  EXPECT_EQ(held("rules:x.json,tp=3"), "[0,4)x[0,16)x[3,6)x[0,2) as [4, 16, 6]");
  set.rules[0].cuts[0].dim = 0;
  EXPECT_EQ(held("rules:x.json"), "[2,4)x[0,16)x[0,8)x[0,2) as [2, 16, 16]");
}

}  // namespace
}  // namespace reshard
