// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/io/hf/config_fields.h"
#include "reshard/model/config.h"

/// The model classes of transformers that parse_config() reads. Defaults are those of transformers
/// 5.23 (models/*/configuration_*.py); which projections have biases follows its modeling_*.py.
namespace reshard::hf {

/// Which projections of attention have biases.
enum class AttentionBias : std::uint8_t {
  never,
  qkv,             ///< q, k and v, always.
  qkv_configured,  ///< q, k and v if attention_bias is set.
  all_configured,  ///< q, k, v and the output projection if attention_bias is set.
};

/// The fixed properties of a model class, and its defaults for absent keys.
struct Architecture {
  std::string_view name;
  std::array<std::string_view, 2> model_types;  ///< the second may be empty.
  std::string_view bare_name;                   ///< of the decoder alone: "LlamaModel".
  AttentionBias attention_bias = AttentionBias::never;
  bool attention_bias_default = false;
  bool mlp_bias = false;  ///< whether the class uses that key.
  bool qk_norm = false;
  bool tied_default = false;
  Index key_value_heads = 0;    ///< default; 0: num_attention_heads.
  Index head_dim = 0;           ///< default; 0: hidden_size / num_attention_heads.
  Index intermediate_size = 0;  ///< default; 0: the key is required.
  bool listed_layers = false;   ///< `read` reads a list of layers; num_hidden_layers is redundant.
  /// Reads the keys that only this class has, after all others. May be null.
  Result<> (*read)(const ConfigFields&, ModelConfig&) = nullptr;
};

std::span<const Architecture> architectures();

/// The name of a class without "FSDP" before it: transformers 4.56 wrote the name that fully_shard
/// gives to a class ("FSDPQwen3ForCausalLM"). Borrows `name`.
std::string_view without_fsdp(std::string_view name);

/// The largest number of experts in one layer, and in all layers.
inline constexpr Index kMaxExperts = 1 << 16;
inline constexpr Index kMaxLayerExperts = 1 << 24;
inline constexpr Index kMaxLayers = 1 << 16;
/// The largest number of modules for multi-token prediction, and of layers in one.
inline constexpr Index kMaxMtp = 64;

/// The number of experts, under any of these keys: versions of transformers use different keys for
/// the same class. Errors: all are absent; two differ.
Result<Index> read_num_experts(const ConfigFields& fields,
                               std::initializer_list<std::string_view> keys);
/// Reads num_nextn_predict_layers, by default `otherwise`: the number of modules of this block.
Result<> read_mtp(const ConfigFields& fields, Index otherwise, MtpNames names,
                  std::vector<LayerKind> block, ModelConfig& config);

/// Reads which layers have linear attention: by layer_types, or all except every
/// full_attention_interval-th.
Result<> read_linear_layers(const ConfigFields& fields, ModelConfig& config);

Result<> read_qwen3_moe(const ConfigFields& fields, ModelConfig& config);
Result<> read_mixtral(const ConfigFields& fields, ModelConfig& config);
Result<> read_gpt_oss(const ConfigFields& fields, ModelConfig& config);
Result<> read_glm4_moe(const ConfigFields& fields, ModelConfig& config);
Result<> read_deepseek_v3(const ConfigFields& fields, ModelConfig& config);
Result<> read_gemma3(const ConfigFields& fields, ModelConfig& config);
Result<> read_qwen3_next(const ConfigFields& fields, ModelConfig& config);
Result<> read_nemotron_h(const ConfigFields& fields, ModelConfig& config);

/// Checks that the numbers of experts are within limits, and that the bytes of the largest weight,
/// stacked or fused, do not overflow.
Result<> check_weights(const ConfigFields& fields, const ModelConfig& config);

/// The keys of a list of layers: a list of names, or a string with one letter per layer.
inline constexpr std::array<std::string_view, 2> kLayerLists = {"layers_block_type", "layer_types"};
inline constexpr std::string_view kLayerPattern = "hybrid_override_pattern";

}  // namespace reshard::hf
