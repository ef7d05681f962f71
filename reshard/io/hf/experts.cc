// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "reshard/io/hf/architectures.h"

namespace reshard::hf {
namespace {

void all_layers_have_experts(ModelConfig& config) {
  for (LayerKind& kind : config.layers) kind.ffn = Ffn::experts;
}

/// Experts in every decoder_sparse_step-th layer, except mlp_only_layers (Qwen).
Result<> read_sparse_layers(const ConfigFields& fields, ModelConfig& config) {
  const Index step = RESHARD_TRY(fields.optional_size("decoder_sparse_step")).value_or(1);
  const auto dense = RESHARD_TRY(fields.indices("mlp_only_layers"));
  for (Index i = 0; i < config.num_hidden_layers; ++i)
    if ((i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end())
      config.layers[static_cast<std::size_t>(i)].ffn = Ffn::experts;
  return {};
}

/// Experts from layer first_k_dense_replace on, shared experts, a router with a correction bias
/// (DeepSeek, GLM).
Result<> read_routed_experts(const ConfigFields& fields, Index first_dense, ModelConfig& config) {
  config.num_experts =
      RESHARD_TRY(read_num_experts(fields, {"n_routed_experts", "num_local_experts"}));
  config.moe_intermediate_size = RESHARD_TRY(fields.size("moe_intermediate_size"));
  // A null means none, as vLLM reads it; transformers has no such configs.
  const bool none = fields.mentions("n_shared_experts") && !fields.has("n_shared_experts");
  const Index shared = RESHARD_TRY(fields.count("n_shared_experts", none ? 0 : 1, kMaxExperts));
  if (__builtin_mul_overflow(shared, config.moe_intermediate_size, &config.shared_expert_size))
    return fields.wrong("n_shared_experts x moe_intermediate_size is more than 64 bits can count");
  config.router_expert_bias = true;
  const Index dense = RESHARD_TRY(fields.count("first_k_dense_replace", first_dense));
  const Index frequency = RESHARD_TRY(fields.count("moe_layer_freq", 1));
  if (frequency != 1)
    return fields.unsupported(fmt::format(
        "moe_layer_freq must be 1 (experts in every layer from first_k_dense_replace on), is {}",
        frequency));
  for (Index i = dense; i < config.num_hidden_layers; ++i)
    config.layers[static_cast<std::size_t>(i)].ffn = Ffn::experts;
  return {};
}

}  // namespace

Result<Index> read_num_experts(const ConfigFields& fields,
                               std::initializer_list<std::string_view> keys) {
  const std::string_view* first = nullptr;
  Index experts = 0;
  for (const auto& key : keys) {
    const auto size = RESHARD_TRY(fields.optional_size(key, kMaxExperts));
    if (!size) continue;
    if (first != nullptr && *size != experts)
      return fields.wrong(
          fmt::format("{} and {} must be equal, are {} and {}", *first, key, experts, *size));
    first = &key;
    experts = *size;
  }
  if (first != nullptr) return experts;
  return fields.wrong(fmt::format("{} (or {}) is missing, must be a positive integer",
                                  *keys.begin(), *(keys.begin() + 1)));
}

Result<> read_mtp(const ConfigFields& fields, Index otherwise, MtpNames names,
                  std::vector<LayerKind> block, ModelConfig& config) {
  config.num_mtp = RESHARD_TRY(fields.count("num_nextn_predict_layers", otherwise, kMaxMtp));
  config.mtp_names = names;
  if (config.num_mtp > 0) config.mtp_block = std::move(block);
  return {};
}

Result<> read_qwen3_moe(const ConfigFields& fields, ModelConfig& config) {
  config.num_experts = RESHARD_TRY(read_num_experts(fields, {"num_experts", "num_local_experts"}));
  config.moe_intermediate_size = RESHARD_TRY(fields.size("moe_intermediate_size"));
  return read_sparse_layers(fields, config);
}

Result<> read_mixtral(const ConfigFields& fields, ModelConfig& config) {
  config.num_experts = RESHARD_TRY(read_num_experts(fields, {"num_experts", "num_local_experts"}));
  config.moe_intermediate_size = config.intermediate_size;
  all_layers_have_experts(config);
  return {};
}

Result<> read_gpt_oss(const ConfigFields& fields, ModelConfig& config) {
  config.num_experts = RESHARD_TRY(read_num_experts(fields, {"num_local_experts", "num_experts"}));
  config.moe_intermediate_size = config.intermediate_size;
  config.attention_sinks = config.router_bias = config.stacked_experts = true;
  all_layers_have_experts(config);
  return {};
}

Result<> read_glm4_moe(const ConfigFields& fields, ModelConfig& config) {
  config.qk_norm = RESHARD_TRY(fields.boolean("use_qk_norm", false));
  RESHARD_TRY(read_routed_experts(fields, 1, config));
  return read_mtp(fields, 1, MtpNames::trailing, {{Mixer::attention, Ffn::experts}}, config);
}

Result<> read_deepseek_v3(const ConfigFields& fields, ModelConfig& config) {
  MlaConfig& mla = config.mla;
  const bool one_q = fields.mentions("q_lora_rank") && !fields.has("q_lora_rank");
  mla.q_rank = one_q ? 0 : RESHARD_TRY(fields.optional_size("q_lora_rank")).value_or(1536);
  mla.kv_rank = RESHARD_TRY(fields.optional_size("kv_lora_rank")).value_or(512);
  mla.nope_dim = RESHARD_TRY(fields.optional_size("qk_nope_head_dim")).value_or(128);
  mla.rope_dim = RESHARD_TRY(fields.optional_size("qk_rope_head_dim")).value_or(64);
  mla.value_dim = RESHARD_TRY(fields.optional_size("v_head_dim")).value_or(128);
  mla.bias = RESHARD_TRY(fields.boolean("attention_bias", false));
  config.head_dim = mla.rope_dim;
  for (LayerKind& kind : config.layers) kind.mixer = Mixer::mla;
  RESHARD_TRY(read_routed_experts(fields, 3, config));
  return read_mtp(fields, 1, MtpNames::trailing, {{Mixer::mla, Ffn::experts}}, config);
}

Result<> read_gemma3(const ConfigFields&, ModelConfig& config) {
  config.sandwich_norms = config.zero_centered_norms = true;
  return {};
}

Result<> read_qwen3_next(const ConfigFields& fields, ModelConfig& config) {
  RESHARD_TRY(read_qwen3_moe(fields, config));
  config.attention_gate = config.zero_centered_norms = config.shared_expert_gate = true;
  config.shared_expert_size =
      RESHARD_TRY(fields.optional_size("shared_expert_intermediate_size")).value_or(512);
  GatedDeltaConfig& g = config.gated_delta;
  g.key_heads = RESHARD_TRY(fields.optional_size("linear_num_key_heads")).value_or(16);
  g.value_heads = RESHARD_TRY(fields.optional_size("linear_num_value_heads")).value_or(32);
  g.key_dim = RESHARD_TRY(fields.optional_size("linear_key_head_dim")).value_or(128);
  g.value_dim = RESHARD_TRY(fields.optional_size("linear_value_head_dim")).value_or(128);
  g.kernel = RESHARD_TRY(fields.optional_size("linear_conv_kernel_dim")).value_or(4);
  if (g.value_heads % g.key_heads != 0)
    return fields.wrong(fmt::format(
        "linear_num_value_heads must be a multiple of linear_num_key_heads, is {} with {}",
        g.value_heads, g.key_heads));
  RESHARD_TRY(read_linear_layers(fields, config));
  // Published checkpoints have a module that their config.json does not mention.
  return read_mtp(fields, 1, MtpNames::qwen, {{Mixer::attention, Ffn::experts}}, config);
}

}  // namespace reshard::hf
