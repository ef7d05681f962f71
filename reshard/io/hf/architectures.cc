// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf/architectures.h"

#include <fmt/format.h>

#include <algorithm>

namespace reshard::hf {
namespace {

using enum AttentionBias;

constexpr std::array kArchitectures = {
    Architecture{.name = "LlamaForCausalLM",
                 .model_types = {"llama"},
                 .bare_name = "LlamaModel",
                 .attention_bias = all_configured,
                 .mlp_bias = true},
    Architecture{.name = "MistralForCausalLM",
                 .model_types = {"mistral"},
                 .bare_name = "MistralModel",
                 .key_value_heads = 8},
    Architecture{.name = "Qwen2ForCausalLM",
                 .model_types = {"qwen2"},
                 .bare_name = "Qwen2Model",
                 .attention_bias = qkv,
                 .key_value_heads = 32},
    Architecture{.name = "Qwen3ForCausalLM",
                 .model_types = {"qwen3"},
                 .bare_name = "Qwen3Model",
                 .attention_bias = all_configured,
                 .qk_norm = true,
                 .key_value_heads = 32,
                 .head_dim = 128},
    Architecture{.name = "Qwen3MoeForCausalLM",
                 .model_types = {"qwen3_moe"},
                 .bare_name = "Qwen3MoeModel",
                 .attention_bias = all_configured,
                 .qk_norm = true,
                 .key_value_heads = 4,
                 .read = read_qwen3_moe},
    Architecture{.name = "Qwen3NextForCausalLM",
                 .model_types = {"qwen3_next"},
                 .bare_name = "Qwen3NextModel",
                 .attention_bias = all_configured,
                 .qk_norm = true,
                 .key_value_heads = 2,
                 .head_dim = 256,
                 .intermediate_size = 5632,
                 .read = read_qwen3_next},
    Architecture{.name = "MixtralForCausalLM",
                 .model_types = {"mixtral"},
                 .bare_name = "MixtralModel",
                 .key_value_heads = 8,
                 .read = read_mixtral},
    // With latent attention, head_dim is not the width of the projections.
    Architecture{.name = "DeepseekV3ForCausalLM",
                 .model_types = {"deepseek_v3", "kimi_k2"},
                 .bare_name = "DeepseekV3Model",
                 .head_dim = 64,
                 .read = read_deepseek_v3},
    Architecture{.name = "Glm4MoeForCausalLM",
                 .model_types = {"glm4_moe"},
                 .bare_name = "Glm4MoeModel",
                 .attention_bias = qkv_configured,
                 .key_value_heads = 8,
                 .read = read_glm4_moe},
    Architecture{.name = "GptOssForCausalLM",
                 .model_types = {"gpt_oss"},
                 .bare_name = "GptOssModel",
                 .attention_bias = all_configured,
                 .attention_bias_default = true,
                 .key_value_heads = 8,
                 .head_dim = 64,
                 .read = read_gpt_oss},
    Architecture{.name = "NemotronHForCausalLM",
                 .model_types = {"nemotron_h"},
                 .bare_name = "NemotronHModel",
                 .mlp_bias = true,
                 .key_value_heads = 8,
                 .head_dim = 128,
                 .intermediate_size = 21504,
                 .listed_layers = true,
                 .read = read_nemotron_h},
    Architecture{.name = "Gemma3ForCausalLM",
                 .model_types = {"gemma3_text"},
                 .bare_name = "Gemma3TextModel",
                 .attention_bias = all_configured,
                 .qk_norm = true,
                 .tied_default = true,
                 .key_value_heads = 4,
                 .head_dim = 256,
                 .read = read_gemma3},
};

struct Weight {
  std::string_view what;
  std::array<Index, 4> sizes;
};

/// Upper bounds that include the fused weights of mixers.
std::vector<Weight> mixer_weights(const ModelConfig& c) {
  const Index heads = c.num_attention_heads, hidden = c.hidden_size;
  const MlaConfig& mla = c.mla;
  const Mamba2Config& mamba = c.mamba2;
  const GatedDeltaConfig& delta = c.gated_delta;
  return {
      {"attention heads x head_dim x hidden_size",
       {heads + 2 * c.num_key_value_heads, c.head_dim, hidden, 1}},
      {"attention heads x latent head sizes x q_lora_rank",
       {heads, mla.nope_dim + mla.rope_dim, std::max(mla.q_rank, hidden), 1}},
      {"attention heads x latent head sizes x kv_lora_rank",
       {heads, mla.nope_dim + mla.value_dim, std::max(mla.kv_rank, hidden), 1}},
      {"q_lora_rank and kv_lora_rank x hidden_size",
       {mla.q_rank + mla.kv_rank + mla.rope_dim, hidden, 1, 1}},
      {"mamba_num_heads x mamba_head_dim x hidden_size",
       {mamba.heads, mamba.head_dim, std::max(hidden, mamba.kernel), 2}},
      {"n_groups x ssm_state_size x hidden_size",
       {mamba.groups, mamba.state, std::max(hidden, mamba.kernel), 2}},
      {"linear_num_key_heads x linear_key_head_dim x hidden_size",
       {delta.key_heads, delta.key_dim, std::max(hidden, delta.kernel), 2}},
      {"linear_num_value_heads x linear_value_head_dim x hidden_size",
       {delta.value_heads, delta.value_dim, std::max(hidden, delta.kernel), 2}},
  };
}

std::vector<Weight> all_weights(const ModelConfig& c) {
  const Index hidden = c.hidden_size;
  std::vector<Weight> weights = {
      {"vocab_size x hidden_size", {c.vocab_size, hidden, 1, 1}},
      {"hidden_size x hidden_size", {hidden, c.num_mtp > 0 ? hidden : 1, 1, 1}},
      {"intermediate_size x hidden_size", {2, c.intermediate_size, hidden, 1}},
      {"experts x moe_intermediate_size x hidden_size",
       {std::max<Index>(c.num_experts, 1), 2, c.moe_intermediate_size, hidden}},
      {"experts x moe_intermediate_size x moe_latent_size",
       {std::max<Index>(c.num_experts, 1), 2, c.moe_intermediate_size, c.moe_latent_size}},
      {"moe_latent_size x hidden_size", {c.moe_latent_size, hidden, 1, 1}},
      {"shared experts x hidden_size", {2, c.shared_expert_size, hidden, 1}},
  };
  const auto mixers = mixer_weights(c);
  weights.insert(weights.begin() + 1, mixers.begin(), mixers.end());
  return weights;
}

}  // namespace

std::string_view without_fsdp(std::string_view name) {
  constexpr std::string_view kAdded = "FSDP";
  return name.starts_with(kAdded) ? name.substr(kAdded.size()) : name;
}

std::span<const Architecture> architectures() { return kArchitectures; }

Result<> check_weights(const ConfigFields& fields, const ModelConfig& config) {
  const Index block = static_cast<Index>(config.mtp_block.size());
  const Index layers = config.num_hidden_layers + config.num_mtp * block;
  if (config.num_experts * layers > kMaxLayerExperts)
    return fields.wrong(fmt::format("num_experts times num_hidden_layers must be at most {}, is {}",
                                    kMaxLayerExperts, config.num_experts * layers));
  for (const Weight& weight : all_weights(config)) {
    // Eight bytes per element, and four such parts fused into one tensor.
    Index bytes = 8 * 4;
    for (Index size : weight.sizes)
      if (__builtin_mul_overflow(bytes, size, &bytes))
        return fields.wrong(
            fmt::format("{}: one weight has more bytes than 64 bits can count", weight.what));
  }
  return {};
}

}  // namespace reshard::hf
