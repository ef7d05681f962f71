// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/configs_testutil.h"

#include <cstdio>

#include "reshard/base/check.h"
#include "reshard/model/canonical.h"
#include "reshard/model/families.h"

namespace reshard {

ModelConfig tiny_dense() {
  ModelConfig c;
  c.architecture = "LlamaForCausalLM";
  c.model_type = "llama";
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 8;
  c.num_key_value_heads = 4;
  c.head_dim = 4;
  c.vocab_size = 100;
  return c;
}

ModelConfig tiny_moe() {
  ModelConfig c = tiny_dense();
  c.architecture = "Qwen3MoeForCausalLM";
  c.model_type = "qwen3_moe";
  c.qk_norm = true;
  c.num_experts = 10;
  c.moe_intermediate_size = 8;
  c.mlp_only_layers = {0};
  return c;
}

ModelConfig llama_8b() {
  ModelConfig c = tiny_dense();
  c.hidden_size = 4096;
  c.intermediate_size = 14336;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 8;
  c.head_dim = 128;
  c.vocab_size = 128256;
  return c;
}

ModelConfig qwen3_30b() {
  ModelConfig c = tiny_moe();
  c.mlp_only_layers.clear();
  c.hidden_size = 2048;
  c.intermediate_size = 6144;
  c.num_hidden_layers = 48;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 4;
  c.head_dim = 128;
  c.vocab_size = 151936;
  c.num_experts = 128;
  c.moe_intermediate_size = 768;
  return c;
}

ModelConfig qwen3_235b() {
  ModelConfig c = qwen3_30b();
  c.hidden_size = 4096;
  c.intermediate_size = 12288;
  c.num_hidden_layers = 94;
  c.num_attention_heads = 64;
  c.moe_intermediate_size = 1536;
  return c;
}

std::shared_ptr<const ModelSpec> model_of(const ModelConfig& config) {
  auto model = canonical_tensors(config);
  RESHARD_CHECK(model.has_value());
  return std::make_shared<const ModelSpec>(*std::move(model));
}

Result<ModelLayout> try_layout(const std::string& text, std::shared_ptr<const ModelSpec> model,
                               const ModelConfig& config) {
  const LayoutSpec spec = RESHARD_TRY(parse_layout(text));
  const FamilyInput input{std::move(model), &config};
  if (spec.family == "megatron") return megatron_layout(spec, input);
  if (spec.family == "vllm") return vllm_layout(spec, input);
  return hf_layout(spec, input);
}

std::shared_ptr<const ModelLayout> layout_of(const std::string& text,
                                             std::shared_ptr<const ModelSpec> model,
                                             const ModelConfig& config) {
  auto layout = try_layout(text, std::move(model), config);
  if (!layout) std::fprintf(stderr, "%s: %s\n", text.c_str(), layout.error().message.c_str());
  RESHARD_CHECK(layout.has_value());
  return std::make_shared<const ModelLayout>(*std::move(layout));
}

}  // namespace reshard
