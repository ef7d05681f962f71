// SPDX-License-Identifier: Apache-2.0
// Protects: who reads that a tensor is missing also reads what is there instead.
#include "reshard/model/naming/misfits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/model/canonical.h"
#include "reshard/model/configs_testutil.h"

namespace reshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj.weight";

TEST(Misfits, a_missing_tensor_is_told_the_closest_name_that_is_there) {
  EXPECT_EQ(instead_of(kQuery, {"vision.patch", "layers.0.self_attn.q_proj.weight"}),
            "; 'layers.0.self_attn.q_proj.weight' is there instead");
  EXPECT_EQ(instead_of(kQuery, {"vision.patch"}),
            "; of what is there, nothing asks for 'vision.patch'");
  EXPECT_EQ(instead_of(kQuery, {"vision.patch", "b", "c"}),
            "; of what is there, nothing asks for 'vision.patch' and 2 more");
  EXPECT_EQ(instead_of(kQuery, {}), "; all that is there is asked for");
}

TEST(Misfits, an_adapter_that_is_not_merged_is_named_as_one) {
  const std::string lora = "model.layers.0.self_attn.q_proj.lora_A.default.weight";
  const std::string base = "model.layers.0.self_attn.q_proj.base_layer.weight";
  for (const std::string& text :
       {instead_of(kQuery, {lora, base}), not_of_config({lora, base}, {4, 4})})
    EXPECT_THAT(text, AllOf(HasSubstr("'" + base + "' and '" + lora + "' are there"),
                            HasSubstr("merge it into the weights first")));
  EXPECT_THAT(instead_of("decoder.layers.self_attention.linear_qkv.weight",
                         {"decoder.layers.self_attention.linear_qkv.to_wrap.weight",
                          "decoder.layers.self_attention.linear_qkv.adapter.linear_in.weight"}),
              AllOf(HasSubstr("to_wrap"), HasSubstr("adapter.linear_in"), HasSubstr("merge")));
}

TEST(Misfits, a_checkpoint_against_its_config_names_both_sides) {
  const ModelConfig config = tiny_dense();
  const ModelSpec wanted = *canonical_tensors(config);
  ModelSpec renamed, longer = wanted;
  for (const CanonicalTensor& t : wanted.tensors())
    ASSERT_TRUE(renamed.add(t.name == "model.norm.weight" ? "model.norm.scale" : t.name, t.shape,
                            t.dtype, t.merged));
  const auto missing = check_against(renamed, wanted);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message, AllOf(HasSubstr("tensor 'model.norm.weight' is missing"),
                                             HasSubstr("nothing asks for 'model.norm.scale'")));
  for (const char* name : {"value_head.weight", "value_head.bias"})
    ASSERT_TRUE(longer.add(name, {2, 3}, DType::bf16));
  const auto more = check_against(longer, wanted);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().message,
            "tensor 'value_head.weight' of shape [2, 3] is not part of the config's architecture, "
            "nor is 1 more; --ignore leaves out what it names");
}

}  // namespace
}  // namespace reshard
