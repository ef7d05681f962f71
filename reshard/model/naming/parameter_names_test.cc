// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/naming/parameter_names.h"

#include <gtest/gtest.h>

namespace reshard {
namespace {

void is(const char* text, ParameterRole role, const char* tensor, const char* adapter = "",
        bool wrapped = false) {
  const ParameterName found = parameter_name(text);
  EXPECT_EQ(name(found.role), name(role)) << text;
  EXPECT_EQ(found.tensor, tensor) << text;
  EXPECT_EQ(found.adapter, adapter) << text;
  EXPECT_EQ(found.wrapped, wrapped) << text;
}

TEST(WithoutWrappers, drops_what_torch_megatron_and_peft_add_anywhere) {
  EXPECT_EQ(without_wrappers("model.layers.0.mlp.up_proj.weight"),
            "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(without_wrappers("module.module._orig_mod.model.layers.0._fsdp_wrapped_module."
                             "_checkpoint_wrapped_module.mlp.weight"),
            "model.layers.0.mlp.weight");
  EXPECT_EQ(without_wrappers("module.base_model.model.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(without_wrappers("base_model.model.lm_head.weight"), "lm_head.weight");
}

TEST(WithoutWrappers, keeps_parameters_and_adapters_of_such_names) {
  for (const char* name : {"", ".", "module", "x.module", "base_model.model", "x.base_model.weight",
                           "base_model.layers.0.weight", "q.lora_A.module.weight",
                           "head.modules_to_save.module.weight", "submodule.weight", "x..weight"})
    EXPECT_EQ(without_wrappers(name), name);
}

TEST(ParameterNames, tell_factors_from_whole_tensors) {
  is("base_model.model.model.layers.0.q_proj.lora_A.weight", ParameterRole::a,
     "model.layers.0.q_proj.weight");
  is("base_model.model.q_proj.lora_B.weight", ParameterRole::b, "q_proj.weight");
  is("base_model.model.embed_tokens.lora_embedding_A", ParameterRole::embedding_a,
     "embed_tokens.weight");
  is("base_model.model.embed_tokens.lora_embedding_B", ParameterRole::embedding_b,
     "embed_tokens.weight");
  is("base_model.model.lm_head.weight", ParameterRole::whole, "lm_head.weight");
  is("base_model.model.q_proj.base_layer.bias", ParameterRole::whole, "q_proj.bias", "", true);
}

TEST(ParameterNames, read_the_modules_of_peft_and_megatron_bridge) {
  is("_orig_mod.base_model.model.q_proj.lora_A.default.weight", ParameterRole::a, "q_proj.weight",
     "default");
  is("q_proj.lora_B.module.weight", ParameterRole::b, "q_proj.weight", "module");
  is("embed_tokens.lora_embedding_B.second", ParameterRole::embedding_b, "embed_tokens.weight",
     "second");
  is("q_proj.base_layer.weight", ParameterRole::whole, "q_proj.weight", "", true);
  is("decoder.layers.0.linear_qkv.to_wrap.weight", ParameterRole::whole,
     "decoder.layers.0.linear_qkv.weight", "", true);
  is("lm_head.modules_to_save.default.weight", ParameterRole::whole, "lm_head.weight", "default");
  is("lm_head.original_module.weight", ParameterRole::original, "lm_head.weight");
}

TEST(ParameterNames, refuse_no_form_of_adapters_in_silence) {
  for (const char* text :
       {"q_proj.lora_magnitude_vector", "q_proj.lora_magnitude_vector.default.weight",
        "q_proj.lora_B.bias", "embed_tokens.token_adapter.trainable_tokens_delta", ".lora_A.weight",
        "lora_A.weight", "q_proj.lora_A.a.b.weight", "q_proj.lora_A",
        "linear_qkv.adapter.linear_in.weight", "linear_qkv.adapter.adapter_q.linear_out.weight"})
    is(text, ParameterRole::other, text);
}

// Speech models of transformers have modules of that name.
TEST(ParameterNames, take_a_module_called_adapter_as_a_part_of_the_model) {
  is("encoder.adapter.layers.0.conv.weight", ParameterRole::whole,
     "encoder.adapter.layers.0.conv.weight");
  is("original_module.weight", ParameterRole::whole, "original_module.weight");
  is("modules_to_save.weight", ParameterRole::whole, "modules_to_save.weight");
}

TEST(ParameterNames, take_any_text) {
  for (const char* text :
       {"", ".", "..", "lora_", ".lora_", "x.modules_to_save", "x.modules_to_save.y",
        "x.original_module", "base_layer", "to_wrap.", "base_model.model."}) {
    const ParameterName found = parameter_name(text);
    EXPECT_LE(found.tensor.size(), std::string_view(text).size() + 7) << text;
  }
}

}  // namespace
}  // namespace reshard
