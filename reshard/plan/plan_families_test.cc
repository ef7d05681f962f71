// SPDX-License-Identifier: Apache-2.0
// Protects: plans of real shapes between the layouts of frameworks are correct, and the load of
// their busiest sender is optimal, also where current planners leave most senders idle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/plan/check.h"
#include "reshard/plan/print.h"
#include "reshard/plan/summary.h"

namespace reshard {
namespace {

Planner plan(const ModelConfig& c, const std::string& from, const std::string& to) {
  const auto model = model_of(c);
  auto p = Planner::make(layout_of(from, model, c), layout_of(to, model, c));
  EXPECT_TRUE(p) << p.error().message;
  return *std::move(p);
}

struct Pair {
  const char* model;
  ModelConfig config;
  const char *from, *to;
};

/// Layout pairs on which replica choices that ignore bytes overload some senders 2 to 64 times.
std::vector<Pair> unbalanced_pairs() {
  return {
      {"llama-8b", llama_8b(), "megatron:tp=2,pp=4,dp=4", "megatron:tp=4,dp=8,offset=32"},
      {"llama-8b", llama_8b(), "megatron:tp=4,pp=2,dp=4", "megatron:tp=2,dp=16"},
      {"llama-8b", llama_8b(), "megatron:tp=4,pp=2,dp=4", "megatron:tp=2,dp=16,offset=32"},
      {"llama-8b", llama_8b(), "megatron:dp=32", "megatron:dp=32,offset=32"},
      {"llama-8b", llama_8b(), "megatron:dp=64", "megatron:tp=4,dp=16,offset=64"},
      {"llama-8b", llama_8b(), "megatron:pp=2,dp=16", "megatron:tp=2,dp=16,offset=32"},
      {"qwen3-30b", qwen3_30b(), "megatron:tp=4,pp=2,ep=8,etp=1,dp=4",
       "megatron:tp=2,ep=8,etp=1,dp=16"},
      {"qwen3-30b", qwen3_30b(), "megatron:tp=4,pp=2,ep=8,etp=1,dp=4",
       "megatron:tp=2,ep=8,etp=1,dp=16,offset=32"},
      {"qwen3-30b", qwen3_30b(), "megatron:tp=4,ep=4,etp=1,dp=8",
       "megatron:tp=4,ep=16,etp=1,dp=8,offset=32"},
      {"qwen3-30b", qwen3_30b(), "megatron:tp=4,ep=4,etp=1,dp=16",
       "megatron:tp=4,ep=8,etp=1,dp=16,offset=64"},
      {"qwen3-30b", qwen3_30b(), "megatron:tp=2,ep=8,etp=1,dp=32",
       "megatron:tp=4,ep=8,etp=1,dp=16,offset=64"},
      {"qwen3-30b", qwen3_30b(), "megatron:tp=1,ep=8,dp=64",
       "megatron:tp=4,ep=8,etp=1,dp=16,offset=64"},
      {"qwen3-235b", qwen3_235b(), "megatron:tp=4,pp=2,ep=8,etp=1,dp=4",
       "megatron:tp=8,ep=8,etp=1,dp=4,offset=32"},
  };
}

TEST(PlanFamilies, busiest_sender_is_at_the_optimum_on_unbalanced_pairs) {
  for (const Pair& p : unbalanced_pairs()) {
    const Planner planner = plan(p.config, p.from, p.to);
    const PlanSummary s = summarise(planner, 2);
    const double ratio =
        static_cast<double>(s.max_egress_bytes) / static_cast<double>(s.optimal_max_egress_bytes);
    EXPECT_LT(ratio, 1.005) << p.model << " " << p.from << " -> " << p.to;
    EXPECT_EQ(s.bytes_total, s.bytes_wire + s.bytes_local);
  }
}

TEST(PlanFamilies, parts_of_real_shapes_pass_the_checker) {
  for (const Pair& p : unbalanced_pairs()) {
    const Planner planner = plan(p.config, p.from, p.to);
    const auto ranks = planner.ranks().members();
    for (std::size_t i : {std::size_t{0}, ranks.size() / 2 + 1, ranks.size() - 1}) {
      const auto ok = check_rank_plan(planner, planner.rank_plan(ranks[i]));
      EXPECT_TRUE(ok) << p.from << " -> " << p.to << ": " << ok.error().message;
    }
  }
}

TEST(PlanFamilies, every_part_of_tiny_models_passes_the_checker) {
  const ModelConfig c = tiny_moe();
  for (const char* from : {"megatron:tp=2,pp=2,ep=2", "megatron:tp=8,ep=5,etp=1,dp=5",
                           "hf:shards=3", "vllm:tp=2,dp=2,ep=4"})
    for (const char* to :
         {"vllm:tp=8", "vllm:tp=4,ep=4,offset=3", "megatron:pp=4,offset=100", "hf"}) {
      const Planner planner = plan(c, from, to);
      planner.ranks().for_each([&](Rank r) {
        const auto ok = check_rank_plan(planner, planner.rank_plan(r));
        EXPECT_TRUE(ok) << from << " -> " << to << ": " << ok.error().message;
      });
    }
}

TEST(PlanFamilies, bytes_without_boxes_are_those_of_the_boxes) {
  using Delivery = std::pair<Rank, Index>;
  for (const ModelConfig& c : tiny_models())
    for (const char* to : {"vllm:tp=2,pp=2,offset=2", "vllm:tp=4"}) {
      const Planner planner = plan(c, "megatron:tp=2,dp=3", to);
      planner.ranks().for_each([&](Rank r) {
        std::vector<Delivery> boxes, bytes;
        planner.for_each_delivery(r, [&](const Transfer& t) {
          boxes.push_back({t.src, t.box.volume() * planner.element_bits(t.tensor) / 8});
        });
        planner.for_each_delivered_bytes(
            r, [&](Rank src, Index n, const RelayHop&) { bytes.push_back({src, n}); });
        EXPECT_EQ(boxes, bytes) << c.model_type << " -> " << to;
      });
    }
}

TEST(PlanFamilies, engines_plan_every_architecture_from_training) {
  for (const ModelConfig& c : tiny_models())
    for (const char* to : {"vllm:tp=2,pp=2,offset=2", "vllm:tp=4", "sglang:tp=2,transposed=1"}) {
      const Planner planner = plan(c, "megatron:tp=2,pp=2", to);
      planner.ranks().for_each([&](Rank r) {
        const auto ok = check_rank_plan(planner, planner.rank_plan(r));
        EXPECT_TRUE(ok) << c.model_type << " -> " << to << ": " << ok.error().message;
      });
    }
}

TEST(PlanFamilies, one_sided_tensors_are_errors_that_name_them) {
  ModelConfig c = tiny_dense();
  ModelConfig without = c;
  without.tie_word_embeddings = true;
  const auto model = model_of(c);
  const auto all = layout_of("megatron:tp=2", model, c),
             less = layout_of("megatron:tp=4", model, without);
  const auto p = Planner::make(all, less);
  ASSERT_FALSE(p);
  EXPECT_THAT(
      p.error().message,
      ::testing::HasSubstr("tensor 'lm_head.weight' is in megatron:tp=2 but not in megatron:tp=4"));
  EXPECT_THAT(Planner::make(less, all).error().message,
              ::testing::HasSubstr("tensor 'lm_head.weight' is needed by megatron:tp=2"));
  EXPECT_TRUE(Planner::make(all, less, {{"lm_head.weight"}}));
}

TEST(PlanFamilies, how_long_a_sum_over_all_takes_is_known_before_it_starts) {
  const auto model = model_of(llama_8b());
  const auto engine = layout_of("vllm:tp=2", model, llama_8b());
  for (const char* from : {"fsdp:shards=4", "fsdp:shards=300", "megatron:tp=2,dp=4"}) {
    const Planner planner = plan(llama_8b(), from, "vllm:tp=2");
    const Index least = planner.min_transfers(), all = summarise(planner).transfers;
    EXPECT_LE(least, all) << from;
    EXPECT_GE(2 * least, all) << from;
  }
  const auto too_many = Planner::make(layout_of("fsdp:shards=131073", model, llama_8b()), engine);
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code, Code::unsupported);
  EXPECT_THAT(too_many.error().message, ::testing::HasSubstr("131073 ranks together; at most"));
}

TEST(PlanFamilies, digests_tell_plans_apart) {
  const ModelConfig c = tiny_dense();
  const auto a = plan(c, "megatron:tp=2", "vllm:tp=2").digest();
  EXPECT_EQ(a, plan(c, "megatron:tp=2", "vllm:tp=2").digest());
  EXPECT_NE(a, plan(c, "megatron:tp=2", "vllm:tp=4").digest());
  EXPECT_NE(a, plan(c, "megatron:tp=2", "vllm:tp=2,offset=1").digest());
  EXPECT_NE(a, plan(c, "megatron:tp=2,norms=separate", "vllm:tp=2").digest());
}

TEST(PlanFamilies, printing_is_unchanged) {
  ModelConfig c = tiny_dense();
  c.num_hidden_layers = 1;
  const Planner p = plan(c, "megatron:tp=2", "vllm:tp=1,offset=1");
  EXPECT_EQ(to_text(p, p.rank_plan(Rank(1)), 3),
            "copy 1  model.layers.0.self_attn.q_proj.weight [16,24)x[0,16)\n"
            "copy 1  model.layers.0.self_attn.q_proj.weight [24,32)x[0,16)\n"
            "copy 1  model.layers.0.self_attn.k_proj.weight [8,12)x[0,16)\n"
            "... and 10 more\n"
            "recv 1 <- 0  model.embed_tokens.weight [0,100)x[0,16)\n"
            "recv 1 <- 0  model.layers.0.self_attn.q_proj.weight [0,8)x[0,16)\n"
            "recv 1 <- 0  model.layers.0.self_attn.q_proj.weight [8,16)x[0,16)\n"
            "... and 9 more\n");
  EXPECT_EQ(to_text(p, p.rank_plan(Rank(0)), 1),
            "send 0 -> 1  model.embed_tokens.weight [0,100)x[0,16)\n"
            "... and 11 more\n");
  const std::string dot = to_dot(p);
  EXPECT_THAT(dot, ::testing::ContainsRegex("s0 .label=.rank 0.nsend [0-9.]+ kB"));
  EXPECT_THAT(dot, ::testing::ContainsRegex("t0 .label=.rank 1.nreceive [0-9.]+ kB"));
  EXPECT_THAT(dot, ::testing::ContainsRegex("s0 -> t0 .label=.[0-9.]+ kB"));
  EXPECT_THAT(dot, ::testing::ContainsRegex("s1 -> t0 [^;]*style=dashed"));
}

TEST(PlanFamilies, a_graph_of_many_ranks_has_at_most_eight_nodes_a_side) {
  ModelConfig c = tiny_dense();
  c.num_hidden_layers = 1;
  const Planner p = plan(c, "fsdp:shards=100", "hf:shards=9,offset=100");
  const std::string dot = to_dot(p);
  EXPECT_THAT(dot, ::testing::HasSubstr("s6 [label=\"4 ranks\\n{96-99}\\nsend "));
  EXPECT_THAT(dot, ::testing::HasSubstr("t4 [label=\"rank 108\\nreceive "));
  EXPECT_THAT(dot, ::testing::Not(::testing::HasSubstr("s7 [")));
  EXPECT_THAT(dot, ::testing::Not(::testing::HasSubstr("t5 [")));
  EXPECT_THAT(to_dot(plan(c, "fsdp:shards=8", "vllm:tp=8,offset=8")),
              ::testing::AllOf(::testing::HasSubstr("[tooltip=\""),
                               ::testing::Not(::testing::ContainsRegex("-> t[0-9] .label"))));
}

}  // namespace
}  // namespace reshard
