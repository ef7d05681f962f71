// SPDX-License-Identifier: Apache-2.0
// Protects: how vLLM 0.33.0 divides, orders and stores experts, by hand-worked numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/cards_testutil.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/families.h"
#include "reshard/model/held_testutil.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const ModelLayout> vllm(const std::string& keys, const ModelConfig& c) {
  return layout_of("vllm:" + keys, model_of(c), c);
}

const std::string kExperts = "model.layers.1.mlp.experts.routed_experts.";

/// The logical experts of a rank's w2_weight, in order.
std::vector<int> experts_of(const ModelLayout& l, int rank, const std::string& layer = "1") {
  const auto id =
      slot_named(l, "model.layers." + layer + ".mlp.experts.routed_experts.w2_weight", rank);
  std::vector<int> experts;
  for (const Fragment& f : l.local(*id, Rank(rank)).fragments) {
    const std::string& name = l.model()[f.tensor].name;
    experts.push_back(std::stoi(name.substr(name.find("experts.") + 8)));
  }
  return experts;
}

TEST(VllmExperts, halves_come_in_either_order) {
  // Experts of 8 x 16, tp=2: 4 rows of each half; expert 0 first.
  const auto gate = vllm("tp=2", tiny_moe()), up = vllm("tp=2,w13=up_first", tiny_moe());
  EXPECT_THAT(boxes_on(*gate, kExperts + "w13_weight", 1),
              ::testing::StartsWith("gate_proj[4,8)x[0,16)@0:16,1 up_proj[4,8)x[0,16)@64:16,1 "
                                    "gate_proj[4,8)x[0,16)@128:16,1"));
  EXPECT_THAT(boxes_on(*up, kExperts + "w13_weight", 1),
              ::testing::StartsWith("up_proj[4,8)x[0,16)@0:16,1 gate_proj[4,8)x[0,16)@64:16,1"));
}

TEST(VllmExperts, transposed_storage_swaps_the_strides) {
  const auto l = vllm("tp=2,transposed=1", tiny_moe());
  EXPECT_EQ(shape_on(*l, kExperts + "w13_weight", 1), "[10, 16, 8]");
  EXPECT_EQ(shape_on(*l, kExperts + "w2_weight", 1), "[10, 4, 16]");
  EXPECT_THAT(boxes_on(*l, kExperts + "w13_weight", 1),
              ::testing::StartsWith("gate_proj[4,8)x[0,16)@0:1,8 up_proj[4,8)x[0,16)@4:1,8 "
                                    "gate_proj[4,8)x[0,16)@128:1,8"));
  EXPECT_THAT(boxes_on(*l, kExperts + "w2_weight", 1),
              ::testing::StartsWith("down_proj[0,16)x[4,8)@0:1,16 down_proj[0,16)x[4,8)@64:1,16"));
}

TEST(VllmExperts, names_are_those_of_the_newest_release) {
  const auto l = vllm("tp=1", tiny_moe()), older = vllm("experts=experts", tiny_moe());
  EXPECT_TRUE(slot_named(*l, kExperts + "w13_weight", 0));
  EXPECT_FALSE(slot_named(*l, "model.layers.1.mlp.experts.w13_weight", 0));
  EXPECT_TRUE(slot_named(*older, "model.layers.1.mlp.experts.w13_weight", 0));
}

TEST(VllmExperts, linear_and_round_robin) {
  const auto linear = vllm("tp=4,ep=4", tiny_moe()),
             round = vllm("tp=4,ep=4,placement=round_robin", tiny_moe());
  EXPECT_THAT(experts_of(*linear, 1), ElementsAre(3, 4, 5));
  EXPECT_THAT(experts_of(*linear, 3), ElementsAre(8, 9));
  EXPECT_THAT(experts_of(*round, 1), ElementsAre(1, 5, 9));
  EXPECT_THAT(experts_of(*round, 3), ElementsAre(3, 7));
}

TEST(VllmExperts, expert_ranks_run_over_tp_then_dp) {
  // ep = tp * dp = 4, pp=2: rank = tp + 2 * pp + 4 * dp; 8 experts, 2 each.
  const auto l = vllm("tp=2,dp=2,pp=2,ep=4", tiny_glm());
  EXPECT_THAT(experts_of(*l, 1), ElementsAre(2, 3));
  EXPECT_THAT(experts_of(*l, 4), ElementsAre(4, 5));
  EXPECT_THAT(experts_of(*l, 7, "3"), ElementsAre(6, 7));
}

TEST(VllmExperts, redundant_ones_begin_again) {
  const auto l = vllm("tp=4,ep=4,redundant=2", tiny_moe());
  EXPECT_THAT(experts_of(*l, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(experts_of(*l, 3), ElementsAre(9, 0, 1));
}

Result<ModelLayout> with_map(const std::string& keys, const ModelConfig& c,
                             const ExpertTables& tables) {
  return rules_layout(*parse_layout("vllm:" + keys), {model_of(c), &c, &tables},
                      card_of("vllm", c));
}

TEST(VllmExperts, a_table_says_which_is_where) {
  const ModelConfig c = tiny_gpt_oss();
  const ModelConfig moe = tiny_moe();
  const ExpertTables one{{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 9, 9}};
  const auto l = with_map("tp=4,ep=4,expert_map=x", moe, one);
  ASSERT_TRUE(l) << l.error().message;
  EXPECT_THAT(experts_of(*l, 3, "2"), ElementsAre(0, 9, 9));
  // One list per layer with experts: layers 1, 2, 3.
  const std::vector<Index> plain{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0};
  const auto each = with_map("tp=4,ep=4,redundant=2,expert_map=x", moe, {plain, one[0], plain});
  ASSERT_TRUE(each) << each.error().message;
  EXPECT_THAT(experts_of(*each, 3, "1"), ElementsAre(9, 0, 0));
  EXPECT_THAT(experts_of(*each, 3, "2"), ElementsAre(0, 9, 9));
}

TEST(VllmExperts, tables_that_do_not_fit_are_refused) {
  const ModelConfig c = tiny_moe();
  const auto message = [&](const std::string& keys, const ExpertTables& tables) {
    const auto l = with_map(keys + ",expert_map=x", c, tables);
    return l ? std::string("accepted") : l.error().message;
  };
  const std::vector<Index> plain{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<Index> twice = plain, far = plain;
  twice[3] = 0;
  far[3] = 10;
  EXPECT_THAT(message("tp=2,ep=2", {twice}), HasSubstr("list 0 lacks expert 3"));
  EXPECT_THAT(message("tp=2,ep=2", {far}), HasSubstr("list 0 names expert 10; there are 0 to 9"));
  EXPECT_THAT(message("tp=2,ep=2,redundant=2", {plain}), HasSubstr("has 10 physical experts"));
  EXPECT_THAT(message("tp=2,ep=2", {plain, plain}),
              HasSubstr("has 2 lists; must be one, or one for each of the 3 layers"));
  EXPECT_THAT(message("tp=2", {plain}), HasSubstr("need ep above 1"));
  EXPECT_THAT(message("tp=2,ep=2,placement=round_robin", {plain}),
              HasSubstr("round_robin excludes"));
  EXPECT_THAT(try_layout("vllm:tp=4,ep=4,redundant=1", model_of(c), c).error().message,
              HasSubstr("ep=4 does not divide num_experts+redundant=11"));
  EXPECT_THAT(try_layout("vllm:tp=2,ep=2,redundant=1000000", model_of(c), c).error().message,
              HasSubstr("num_experts+redundant=1000010 exceeds 131072"));
}

TEST(VllmExperts, shared_ones_are_whole_where_tokens_are_dealt_over_tp) {
  const auto shared = [](const std::string& keys, const ModelConfig& c, const std::string& name) {
    return rows_on(*vllm(keys, c), "model.layers.1." + name, 1);
  };
  const std::string deepseek = "mlp.shared_experts.gate_up_proj.weight";
  const std::string halves = "gate_proj[8,16)+0 up_proj[8,16)+8 of 16",
                    whole = "gate_proj[0,16)+0 up_proj[0,16)+16 of 32";
  EXPECT_EQ(shared("tp=2,dp=2", tiny_deepseek(), deepseek), halves);
  EXPECT_EQ(shared("tp=2,ep=2", tiny_deepseek(), deepseek), halves);
  EXPECT_EQ(shared("tp=2,dp=2,ep=4", tiny_deepseek(), deepseek), whole);
  EXPECT_EQ(shared("tp=2,dp=2,ep=4", tiny_glm(), deepseek), halves);
  EXPECT_EQ(shared("tp=2,dp=2,ep=4", tiny_qwen3_next(), "mlp.shared_expert.gate_up_proj.weight"),
            whole);
  EXPECT_EQ(shared("tp=2,dp=2,ep=4", tiny_nemotron(), "mixer.shared_experts.up_proj.weight"),
            "up_proj[0,16)+0 of 16");
  EXPECT_EQ(shared("tp=2", tiny_qwen3_next(), "mlp.shared_expert_gate.weight"),
            "shared_expert_gate[0,1)+0 of 1");
}

TEST(VllmExperts, without_gates_w13_is_up_alone) {
  // 8 latent experts of 8 x 12 over tp=2.
  const auto l = vllm("tp=2", tiny_nemotron());
  const std::string at = "model.layers.1.mixer.";
  EXPECT_EQ(shape_on(*l, at + "experts.routed_experts.w13_weight", 1), "[8, 4, 12]");
  EXPECT_THAT(boxes_on(*l, at + "experts.routed_experts.w13_weight", 1),
              ::testing::StartsWith("up_proj[4,8)x[0,12)@0:12,1 up_proj[4,8)x[0,12)@48:12,1"));
  EXPECT_EQ(shape_on(*l, at + "experts.routed_experts.w2_weight", 1), "[8, 12, 4]");
  EXPECT_EQ(rows_on(*l, at + "fc2_latent_proj.weight", 1), "fc2_latent_proj[0,16)+0 of 16");
}

TEST(VllmExperts, gpt_oss_keeps_gate_and_up_in_turn) {
  // 4 experts, hidden 16, inner 8; canonical [E, 16, 8, 2], here [E, 4 of 8, 2, 16].
  const auto l = vllm("tp=2", tiny_gpt_oss());
  EXPECT_EQ(shape_on(*l, kExperts + "w13_weight", 1), "[4, 8, 16]");
  EXPECT_EQ(boxes_on(*l, kExperts + "w13_weight", 1),
            "gate_up_proj[0,4)x[0,16)x[4,8)x[0,2)@0:128,1,32,16");
  EXPECT_EQ(boxes_on(*l, kExperts + "w2_weight", 1), "down_proj[0,4)x[4,8)x[0,16)@0:64,1,4");
  EXPECT_EQ(boxes_on(*l, kExperts + "w13_bias", 1), "gate_up_proj_bias[0,4)x[4,8)x[0,2)@0:8,2,1");
  const auto t = vllm("tp=2,transposed=1", tiny_gpt_oss());
  EXPECT_EQ(shape_on(*t, kExperts + "w13_weight", 1), "[4, 16, 8]");
  EXPECT_EQ(boxes_on(*t, kExperts + "w13_weight", 1),
            "gate_up_proj[0,4)x[0,16)x[4,8)x[0,2)@0:128,8,2,1");
  EXPECT_EQ(boxes_on(*t, kExperts + "w2_weight", 1), "down_proj[0,4)x[4,8)x[0,16)@0:64,16,1");
}

TEST(VllmExperts, a_bias_that_is_summed_is_on_one_rank) {
  const auto cut = vllm("tp=2,dp=2", tiny_gpt_oss()), whole = vllm("tp=2,ep=2", tiny_gpt_oss());
  EXPECT_EQ(boxes_on(*cut, kExperts + "w2_bias", 0), "down_proj_bias[0,4)x[0,16)@0:16,1");
  for (int rank : {1, 2, 3}) {
    EXPECT_EQ(boxes_on(*cut, kExperts + "w2_bias", rank), "");
    EXPECT_EQ(shape_on(*cut, kExperts + "w2_bias", rank), "[4, 16]");
  }
  EXPECT_EQ(boxes_on(*whole, kExperts + "w2_bias", 1), "down_proj_bias[2,4)x[0,16)@0:16,1");
}

TEST(VllmExperts, routers_are_whole_and_some_in_float32) {
  const auto glm = vllm("tp=2", tiny_glm()), deepseek = vllm("tp=2", tiny_deepseek());
  const auto dtype = [](const ModelLayout& l, const std::string& name) {
    return l.slot(*slot_named(l, "model.layers.1.mlp." + name, 1)).dtype;
  };
  EXPECT_EQ(dtype(*glm, "gate.weight"), DType::f32);
  EXPECT_EQ(dtype(*deepseek, "gate.weight"), DType::bf16);
  EXPECT_EQ(dtype(*deepseek, "gate.e_score_correction_bias"), DType::f32);
  EXPECT_EQ(shape_on(*glm, "model.layers.1.mlp.gate.weight", 1), "[8, 16]");
}

TEST(VllmExperts, up_first_means_nothing_where_rows_alternate) {
  const ModelConfig c = tiny_gpt_oss();
  EXPECT_THAT(try_layout("vllm:w13=up_first", model_of(c), c).error().message,
              HasSubstr("alternates gate and up rows"));
}

TEST(Vllm, every_rank_of_every_layout_is_valid_and_together_they_hold_all) {
  for (const ModelConfig& c : tiny_models()) {
    std::vector<std::string> all = {
        "tp=1",      "tp=2",          "tp=4,pp=3",    "tp=2,pp=2,replicas=2",
        "tp=2,dp=2", "dtype=float32", "offset=3,tp=2"};
    if (c.num_mtp > 0)
      for (const char* keys : {"mtp=1", "tp=2,pp=2,mtp=1"}) all.emplace_back(keys);
    if (c.is_moe())
      for (const char* keys :
           {"tp=4,ep=4", "tp=2,dp=2,ep=4", "tp=2,pp=2,dp=2,ep=4,transposed=1", "tp=2,transposed=1",
            "dp=2,ep=2,placement=round_robin", "tp=2,ep=2,redundant=6,experts=experts",
            "tp=4,ep=4,redundant=2,dp=2"}) {
        if (std::string(keys).find("redundant=2") != std::string::npos && c.num_experts % 4 != 2)
          continue;
        all.emplace_back(keys);
      }
    for (const std::string& keys : all) {
      const auto l = vllm(keys, c);
      l->ranks().for_each([&](Rank r) {
        const auto ok = check_shard_map(*l, r);
        EXPECT_TRUE(ok) << c.model_type << " " << keys << ": " << ok.error().message;
      });
      EXPECT_EQ(first_missing(*l), "") << c.model_type << " " << keys;
    }
  }
}

}  // namespace
}  // namespace reshard
