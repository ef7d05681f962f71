// SPDX-License-Identifier: Apache-2.0
// Protects: what a class holds as a buffer is known by its model_type, never guessed by a name.
#include "reshard/model/families/buffers.h"

#include <gtest/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/families.h"
#include "reshard/model/local_text_testutil.h"

namespace reshard::families {
namespace {

const std::string kBias = "model.layers.1.mlp.gate.e_score_correction_bias";

TEST(Buffers, the_same_name_is_a_buffer_in_one_class_and_a_parameter_in_another) {
  EXPECT_EQ(held_as("deepseek_v3", kBias), Held::f32_buffer);
  EXPECT_EQ(held_as("minimax_m2", kBias), Held::buffer);
  EXPECT_EQ(held_as("minimax_m3_vl_text", kBias), Held::buffer) << "the decoder inside";
  EXPECT_EQ(held_as("laguna", kBias), Held::parameter);
  EXPECT_EQ(held_as("ernie4_5_moe", "mlp.moe_statics.e_score_correction_bias"),
            Held::f32_parameter);
  EXPECT_EQ(held_as("new", kBias), Held::unknown);
  EXPECT_EQ(held_as("", kBias), Held::unknown);
  EXPECT_EQ(held_as("new", "e_score_correction_bias"), Held::unknown);
  EXPECT_EQ(held_as("new", "model.layers.1.mlp.gate.weight"), Held::parameter);
}

TEST(Buffers, last_components_are_compared_whole) {
  EXPECT_EQ(held_as("inkling", "model.layers.0.mlp.gate.bias"), Held::f32_buffer);
  EXPECT_EQ(held_as("inkling", "model.layers.0.other_mlp.gate.bias"), Held::parameter);
  EXPECT_EQ(held_as("lfm2_moe", "model.layers.0.feed_forward.expert_bias"), Held::f32_buffer);
  EXPECT_EQ(held_as("lfm2_moe", "model.layers.0.no_expert_bias"), Held::parameter);
}

/// A model of an unknown class with a correction bias of 6 experts.
Result<ModelLayout> fsdp(std::string_view type, const std::string& text = "fsdp:shard=2") {
  auto model = std::make_shared<ModelSpec>();
  (void)model->add(kBias, {6}, DType::bf16);
  FamilyInput input{model};
  input.model_type = type;
  return fsdp_layout(*parse_layout(text), input);
}

TEST(Buffers, fsdp_leaves_buffers_whole_and_cuts_parameters) {
  EXPECT_EQ(fsdp("longcat_flash")->local_shape(SlotId(0), Rank(1)), Dims({6}));
  EXPECT_EQ(fsdp("longcat_flash")->slot(SlotId(0)).dtype, DType::bf16);
  EXPECT_EQ(fsdp("exaone_moe")->local_shape(SlotId(0), Rank(1)), Dims({6}));
  EXPECT_EQ(fsdp("exaone_moe")->slot(SlotId(0)).dtype, DType::f32);
  EXPECT_EQ(fsdp("laguna")->local_shape(SlotId(0), Rank(1)), Dims({3}));
  EXPECT_EQ(fsdp("ernie4_5_moe", "fsdp:shard=2,dtype=bfloat16")->slot(SlotId(0)).dtype, DType::f32);
}

TEST(Buffers, fsdp_refuses_by_name_what_an_unknown_class_may_hold_either_way) {
  const auto layout = fsdp("new");
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, Code::unsupported);
  EXPECT_EQ(layout.error().message,
            "fsdp: tensor '" + kBias +
                "' is a buffer in some classes, which fully_shard leaves whole, and a parameter in "
                "others; which it is with model_type \"new\" is not known; say so in dtensor:FILE");
  EXPECT_EQ(fsdp("new", "dcp:shard=2")->slot(SlotId(0)).dtype, DType::bf16)
      << "a checkpoint of pieces is the same either way";
}

}  // namespace
}  // namespace reshard::families
