// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/configs_testutil.h"

#include <cstdio>

#include "reshard/base/check.h"
#include "reshard/io/cards_testutil.h"
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
  c.layers.assign(4, {Mixer::attention, Ffn::dense});
  return c;
}

ModelConfig tiny_moe() {
  ModelConfig c = tiny_dense();
  c.architecture = "Qwen3MoeForCausalLM";
  c.model_type = "qwen3_moe";
  c.qk_norm = true;
  c.num_experts = 10;
  c.moe_intermediate_size = 8;
  c.layers.assign(4, {Mixer::attention, Ffn::experts});
  c.layers[0].ffn = Ffn::dense;
  return c;
}

ModelConfig wide_moe() {
  ModelConfig c = tiny_moe();
  c.hidden_size = 96;
  c.intermediate_size = 120;
  c.moe_intermediate_size = 40;
  c.vocab_size = 500;
  return c;
}

ModelConfig tiny_deepseek() {
  ModelConfig c = tiny_moe();
  c.architecture = "DeepseekV3ForCausalLM";
  c.model_type = "deepseek_v3";
  c.qk_norm = false;
  c.mla = {.q_rank = 16, .kv_rank = 8, .nope_dim = 8, .rope_dim = 4, .value_dim = 6, .bias = false};
  c.layers.assign(4, {Mixer::mla, Ffn::experts});
  c.layers[0].ffn = Ffn::dense;
  c.num_experts = 8;
  c.shared_expert_size = 16;
  c.router_expert_bias = true;
  c.num_mtp = 1;
  c.mtp_block = {{Mixer::mla, Ffn::experts}};
  c.mtp_names = MtpNames::trailing;
  return c;
}

ModelConfig tiny_glm() {
  ModelConfig c = tiny_deepseek();
  c.architecture = "Glm4MoeForCausalLM";
  c.model_type = "glm4_moe";
  c.mla = {};
  c.attention_bias = true;
  c.qk_norm = true;
  for (LayerKind& kind : c.layers) kind.mixer = Mixer::attention;
  c.mtp_block = {{Mixer::attention, Ffn::experts}};
  return c;
}

ModelConfig tiny_gpt_oss() {
  ModelConfig c = tiny_moe();
  c.architecture = "GptOssForCausalLM";
  c.model_type = "gpt_oss";
  c.qk_norm = false;
  c.attention_bias = c.attention_output_bias = true;
  c.attention_sinks = true;
  c.layers.assign(4, {Mixer::attention, Ffn::experts});
  c.num_experts = 4;
  c.router_bias = true;
  c.stacked_experts = true;
  return c;
}

ModelConfig tiny_qwen3_next() {
  ModelConfig c = tiny_moe();
  c.architecture = "Qwen3NextForCausalLM";
  c.model_type = "qwen3_next";
  c.attention_gate = true;
  c.zero_centered_norms = true;
  c.layers.assign(4, {Mixer::gated_delta, Ffn::experts});
  c.layers[3].mixer = Mixer::attention;
  c.gated_delta = {.key_heads = 4, .value_heads = 8, .key_dim = 4, .value_dim = 6, .kernel = 4};
  c.num_experts = 4;
  c.shared_expert_size = 16;
  c.shared_expert_gate = true;
  c.num_mtp = 1;
  c.mtp_block = {{Mixer::attention, Ffn::experts}};
  c.mtp_names = MtpNames::qwen;
  return c;
}

ModelConfig tiny_gemma3() {
  ModelConfig c = tiny_dense();
  c.architecture = "Gemma3ForCausalLM";
  c.model_type = "gemma3_text";
  c.tie_word_embeddings = true;
  c.qk_norm = true;
  c.sandwich_norms = true;
  c.zero_centered_norms = true;
  return c;
}

ModelConfig tiny_nemotron() {
  ModelConfig c = tiny_moe();
  c.architecture = "NemotronHForCausalLM";
  c.model_type = "nemotron_h";
  c.qk_norm = false;
  c.gated_mlp = false;
  c.num_hidden_layers = 6;
  c.layers = {{Mixer::mamba2, Ffn::none},    {Mixer::none, Ffn::experts},
              {Mixer::attention, Ffn::none}, {Mixer::none, Ffn::dense},
              {Mixer::mamba2, Ffn::none},    {Mixer::none, Ffn::experts}};
  c.mamba2 = {.heads = 8, .head_dim = 4, .groups = 4, .state = 6, .kernel = 4};
  c.num_experts = 8;
  c.moe_latent_size = 12;
  c.shared_expert_size = 16;
  c.router_expert_bias = true;
  c.num_mtp = 1;
  c.mtp_block = {{Mixer::attention, Ffn::none}, {Mixer::none, Ffn::experts}};
  c.mtp_names = MtpNames::nemotron;
  return c;
}

std::vector<ModelConfig> tiny_models() {
  return {tiny_dense(),   tiny_moe(),        tiny_deepseek(), tiny_glm(),
          tiny_gpt_oss(), tiny_qwen3_next(), tiny_gemma3(),   tiny_nemotron()};
}

ModelConfig llama_8b() {
  ModelConfig c = tiny_dense();
  c.hidden_size = 4096;
  c.intermediate_size = 14336;
  c.num_hidden_layers = 32;
  c.layers.resize(32);
  c.num_attention_heads = 32;
  c.num_key_value_heads = 8;
  c.head_dim = 128;
  c.vocab_size = 128256;
  return c;
}

ModelConfig qwen3_30b() {
  ModelConfig c = tiny_moe();
  c.hidden_size = 2048;
  c.intermediate_size = 6144;
  c.num_hidden_layers = 48;
  c.layers.assign(48, {Mixer::attention, Ffn::experts});
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
  c.layers.assign(94, {Mixer::attention, Ffn::experts});
  c.num_attention_heads = 64;
  c.moe_intermediate_size = 1536;
  return c;
}

std::shared_ptr<const ModelSpec> model_of(const ModelConfig& config) {
  auto model = canonical_tensors(config);
  RESHARD_CHECK(model.has_value());
  return std::make_shared<const ModelSpec>(*std::move(model));
}

std::shared_ptr<const ModelSpec> model_of(const ModelConfig& config,
                                          const std::vector<std::string>& ends, DType dtype) {
  ModelSpec model;
  const auto usual = model_of(config);
  for (const CanonicalTensor& t : usual->tensors()) {
    const bool other = std::any_of(ends.begin(), ends.end(),
                                   [&](const std::string& end) { return t.name.ends_with(end); });
    RESHARD_CHECK(model.add(t.name, t.shape, other ? dtype : t.dtype, t.merged).has_value());
  }
  return std::make_shared<const ModelSpec>(std::move(model));
}

Result<ModelLayout> try_layout(const std::string& text, std::shared_ptr<const ModelSpec> model,
                               const ModelConfig& config) {
  const LayoutSpec spec = RESHARD_TRY(parse_layout(text));
  const FamilyInput input{std::move(model), &config};
  if (spec.family == "megatron") return megatron_layout(spec, input);
  if (spec.family == "vllm" || spec.family == "sglang")
    return rules_layout(spec, input, card_of(spec.family, config));
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
