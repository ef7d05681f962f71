// SPDX-License-Identifier: Apache-2.0
// Protects: the layers of each chunk of each pipeline stage, by the examples in comments of
// Megatron-Core and by hand.
#include "reshard/model/families/megatron/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/families.h"
#include "reshard/model/local_text_testutil.h"

namespace reshard::families {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// "0.0:E[0,2) 1.0:[2,4)L": stage.chunk and what it has, or the error.
std::string chunks(const std::string& keys, Index layers, Index mtp = 0, bool hybrid = false) {
  const auto sizes = read_megatron_sizes(*parse_layout("megatron:" + keys));
  if (!sizes) return sizes.error().message;
  const auto list = pipeline_chunks(*sizes, layers, mtp, hybrid);
  if (!list) return list.error().message;
  std::string text;
  for (const PipelineChunk& c : *list)
    text += (text.empty() ? "" : " ") + std::to_string(c.stage) + "." + std::to_string(c.chunk) +
            ":" + (c.embedding ? "E" : "") + "[" + std::to_string(c.first_layer) + "," +
            std::to_string(c.first_layer + c.num_layers) + ")" + (c.mtp ? "m" : "") +
            (c.loss ? "L" : "");
  return text;
}

TEST(MegatronStages, chunks_take_turns_over_the_stages) {
  EXPECT_EQ(chunks("pp=2,vpp=4", 8),
            "0.0:E[0,1) 1.0:[1,2) 0.1:[2,3) 1.1:[3,4) 0.2:[4,5) 1.2:[5,6) 0.3:[6,7) 1.3:[7,8)L");
  EXPECT_EQ(chunks("pp=2,vpp=2", 8, 1), "0.0:E[0,2) 1.0:[2,4) 0.1:[4,6) 1.1:[6,8)mL");
  // 4, 4 and 2 layers in chunks of 2, 2 and 1.
  EXPECT_EQ(chunks("pp=3,vpp=2,last=2", 10),
            "0.0:E[0,2) 1.0:[2,4) 2.0:[4,5) 0.1:[5,7) 1.1:[7,9) 2.1:[9,10)L");
}

TEST(MegatronStages, embedding_and_loss_count_as_layers) {
  EXPECT_EQ(chunks("pp=2,account_embedding=1", 7), "0.0:E[0,3) 1.0:[3,7)L");
  EXPECT_EQ(chunks("pp=2,account_loss=1", 7), "0.0:E[0,4) 1.0:[4,7)L");
  EXPECT_EQ(chunks("pp=2,vpp=2,account_embedding=1,account_loss=1", 6),
            "0.0:E[0,1) 1.0:[1,3) 0.1:[3,5) 1.1:[5,6)L");
  EXPECT_EQ(chunks("pp=2,vpp=2", 6), "0.0:E[0,1) 1.0:[1,3) 0.1:[3,5) 1.1:[5,6)L");
  EXPECT_EQ(chunks("pp=4", 6), "0.0:E[0,1) 1.0:[1,3) 2.0:[3,5) 3.0:[5,6)L");
  EXPECT_THAT(chunks("pp=4,account_embedding=0", 6), HasSubstr("pp=4 does not divide"));
}

// hybrid_layer_allocation.py select_pipeline_segment: "Number of layers must be evenly divisible by
// pipeline-model-parallel-size", "Virtual pipeline parallelism is not supported when
// hybrid_layer_pattern has no pipe separators".
TEST(MegatronStages, hybrids_share_layers_without_places_for_embedding_and_loss) {
  const auto hybrid = [](const std::string& keys, Index layers, Index mtp = 0) {
    return chunks(keys, layers, mtp, true);
  };
  EXPECT_EQ(hybrid("pp=2", 6, 1), "0.0:E[0,3) 1.0:[3,6)mL");
  EXPECT_EQ(hybrid("pp=3,first=1,last=3", 6), "0.0:E[0,1) 1.0:[1,3) 2.0:[3,6)L");
  EXPECT_THAT(hybrid("pp=4", 6), HasSubstr("4 stages cannot share 6 layers equally"));
  EXPECT_THAT(hybrid("pp=4,account_embedding=1,account_loss=1", 6), HasSubstr("leave out account"));
  EXPECT_THAT(hybrid("pp=2,vpp=2", 8), HasSubstr("vpp=2: virtual stages of a hybrid need layout="));
  EXPECT_EQ(hybrid("pp=2,layout=Et|tt|t|ttL", 6), "0.0:E[0,1) 1.0:[1,3) 0.1:[3,4) 1.1:[4,6)L");
  EXPECT_THAT(hybrid("pp=4,layout=Et|t|m|L", 2, 1), HasSubstr("must be in the stage of L"));
  const auto of_gpt = *read_megatron_sizes(*parse_layout("megatron:pp=4"));
  EXPECT_TRUE(accounts_by_rule(of_gpt, 6, false));
  EXPECT_FALSE(accounts_by_rule(of_gpt, 6, true));
  EXPECT_FALSE(accounts_by_rule(of_gpt, 8, false));
}

TEST(MegatronStages, notes_say_that_embedding_and_loss_were_counted) {
  ModelConfig c = tiny_dense();
  const auto notes = [&](const std::string& text) {
    return layout_notes(*parse_layout(text), &c)->size();
  };
  c.num_hidden_layers = 6;
  c.layers.assign(6, c.layers[0]);
  EXPECT_THAT(*layout_notes(*parse_layout("megatron:pp=4"), &c),
              ElementsAre(HasSubstr("counts embedding and loss as a layer each: pp*vpp=4 divides "
                                    "num_hidden_layers=6 plus 2")));
  for (const char* text : {"megatron:pp=3", "megatron:pp=4,first=1,last=1", "vllm:pp=4",
                           "megatron:pp=4,account_embedding=1,account_loss=1"})
    EXPECT_EQ(notes(text), 0U) << text;
  c.layers.assign(6, {Mixer::attention, Ffn::none});
  EXPECT_EQ(notes("megatron:pp=4"), 0U);
}

TEST(MegatronStages, say_how_many_layers_are_left_for_the_others) {
  EXPECT_EQ(chunks("pp=2,first=5", 2),
            "megatron: pp=2 with first=5 leaves 0 of num_hidden_layers=2 to 1 other stage, fewer "
            "than one each");
  EXPECT_EQ(chunks("pp=2,first=3,last=4", 8),
            "megatron: pp=2 with first=3 last=4 has 7 layers, must have num_hidden_layers=8");
  EXPECT_EQ(chunks("last=3", 8),
            "megatron: last=3, but the one stage of pp=1 has num_hidden_layers=8");
}

TEST(MegatronStages, an_explicit_layout_says_everything) {
  EXPECT_EQ(chunks("pp=2,layout=Ett|t|tt|mL", 5, 1), "0.0:E[0,2) 1.0:[2,3) 0.1:[3,5) 1.1:[5,5)mL");
  EXPECT_EQ(chunks("pp=4,layout=E|t*3|m|L", 3, 1), "0.0:E[0,0) 1.0:[0,3) 2.0:[3,3)m 3.0:[3,3)L");
}

TEST(MegatronStages, notation_of_pipeline_model_parallel_layout) {
  EXPECT_THAT(*parse_pipeline_layout("Ettt|(tt|)*2m|L"), ElementsAre("Ettt", "tt", "tt", "m", "L"));
  EXPECT_THAT(*parse_pipeline_layout("E(t|t)*2t*3L"), ElementsAre("Et", "tt", "ttttL"));
  EXPECT_THAT(*parse_pipeline_layout("E|*3L"), ElementsAre("E", "", "", "L"));
  for (const char* bad : {"Ex", "(t", "((t)*2)*2", "t*", "t*0", "t*99999999999999999999", ")",
                          "(t*60000)*60000", "*2"})
    EXPECT_FALSE(parse_pipeline_layout(bad)) << bad;
}

TEST(MegatronStages, say_what_is_wrong_with_a_layout) {
  EXPECT_THAT(chunks("pp=2,layout=Et|t|tL", 3), HasSubstr("pp=2 does not divide its 3 (virtual)"));
  EXPECT_THAT(chunks("pp=2,vpp=2,layout=Et|tL", 2), HasSubstr("are vpp=1, not vpp=2"));
  EXPECT_THAT(chunks("pp=2,layout=tE|tL", 2), HasSubstr("E must come first"));
  EXPECT_THAT(chunks("pp=2,layout=EtL|t", 2), HasSubstr("L must come last"));
  EXPECT_THAT(chunks("pp=2,layout=Et|tL", 3), HasSubstr("2 decoder layers (t), but the model has"));
  EXPECT_THAT(chunks("pp=2,layout=Et|tL", 2, 1), HasSubstr("0 MTP layers (m) must be 1"));
  EXPECT_THAT(chunks("pp=2,layout=Em|tL", 1, 1), HasSubstr("must come before MTP layers"));
  EXPECT_THAT(chunks("pp=2,layout=Et|m|L|", 1, 1), HasSubstr("in its last chunk"));
  EXPECT_THAT(chunks("pp=2,layout=Et|mmL,first=1", 1, 2), HasSubstr("leave out first"));
  EXPECT_THAT(chunks("pp=2,first=1,account_loss=1", 3), HasSubstr("leave out account_embedding"));
  EXPECT_THAT(chunks("vpp=2", 4), HasSubstr("vpp=2 needs pp of 2 or more"));
  EXPECT_THAT(chunks("pp=2,vpp=3", 8), HasSubstr("vpp=3 does not divide the 4 layers"));
}

TEST(MegatronStages, names_count_layers_within_a_chunk) {
  ModelConfig c = tiny_dense();
  c.tie_word_embeddings = true;
  const auto l = layout_of("megatron:pp=2,vpp=2", model_of(c), c);
  const std::string first = local_names(*l, 0), last = local_names(*l, 1);
  EXPECT_THAT(first, HasSubstr("model0.embedding.word_embeddings.weight\n"));
  EXPECT_THAT(first, HasSubstr("model1.decoder.layers.0.mlp.linear_fc2.weight\n"));
  EXPECT_THAT(first, Not(HasSubstr("layers.1.")));
  EXPECT_THAT(last,
              HasSubstr("model1.decoder.final_layernorm.weight\nmodel1.output_layer.weight\n"));
  EXPECT_THAT(last, Not(HasSubstr("model0.output_layer")));
  const auto layer_of = [&](const std::string& name) {
    for (SlotId id : l->slots_of(Rank(0)))
      if (l->slot(id).name == name) return l->model()[l->slot(id).sections[0].parts[0].tensor].name;
    return std::string("absent");
  };
  EXPECT_EQ(layer_of("model1.decoder.layers.0.mlp.linear_fc2.weight"),
            "model.layers.2.mlp.down_proj.weight");
}

TEST(MegatronStages, a_stage_of_its_own_for_mtp_has_no_final_norm) {
  const ModelConfig c = tiny_deepseek();
  const auto l = layout_of("megatron:pp=4,layout=Et|t*3|m|L", model_of(c), c);
  EXPECT_THAT(local_names(*l, 1), HasSubstr("decoder.final_layernorm.weight\n"));
  EXPECT_THAT(local_names(*l, 2), HasSubstr("embedding.word_embeddings.weight\n"));
  EXPECT_THAT(local_names(*l, 2), HasSubstr("mtp.layers.0.eh_proj.weight\n"));
  EXPECT_EQ(local_names(*l, 3), "output_layer.weight\n");
}

}  // namespace
}  // namespace reshard::families
