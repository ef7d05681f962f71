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

/// The model classes of transformers that hf_config knows. Internal to io. Defaults were read from
/// transformers 5.23 (models/*/configuration_*.py); which projections have biases, from
/// modeling_*.py there.
namespace reshard::hf {

/// Which projections of attention have biases.
enum class AttentionBias : std::uint8_t {
  never,
  qkv,             ///< q, k and v, always.
  qkv_configured,  ///< q, k and v where attention_bias says so.
  all_configured,  ///< the output projection too.
};

/// What of a model class is fixed, and what it takes for a key that is absent.
struct Architecture {
  std::string_view name;
  std::array<std::string_view, 2> model_types;  ///< the second may be empty.
  AttentionBias attention_bias = AttentionBias::never;
  bool attention_bias_default = false;
  bool mlp_bias = false;  ///< whether it heeds that key.
  bool qk_norm = false;
  bool tied_default = false;
  Index key_value_heads = 0;    ///< default; 0: num_attention_heads.
  Index head_dim = 0;           ///< default; 0: hidden_size / num_attention_heads.
  Index intermediate_size = 0;  ///< default; 0: it must be there.
  bool listed_layers = false;   ///< `read` finds the layers; num_hidden_layers only repeats them.
  /// Reads what only this class has, after all of the above; may be null.
  Result<> (*read)(const ConfigFields&, ModelConfig&) = nullptr;
};

std::span<const Architecture> architectures();

/// Experts may number this many in one layer, and in all.
inline constexpr Index kMaxExperts = 1 << 16;
inline constexpr Index kMaxLayerExperts = 1 << 24;
inline constexpr Index kMaxLayers = 1 << 16;
/// Modules for multi-token prediction, and layers of one.
inline constexpr Index kMaxMtp = 64;

/// The number of experts, under any of these keys: transformers has written several for the same
/// class. Errors: none of them is there; two differ.
Result<Index> read_num_experts(const ConfigFields& fields,
                               std::initializer_list<std::string_view> keys);
/// num_nextn_predict_layers, or `otherwise`: modules of this block.
Result<> read_mtp(const ConfigFields& fields, Index otherwise, MtpNames names,
                  std::vector<LayerKind> block, ModelConfig& config);

/// Which layers have linear attention: layer_types, or all but each full_attention_interval-th.
Result<> read_linear_layers(const ConfigFields& fields, ModelConfig& config);

Result<> read_qwen3_moe(const ConfigFields& fields, ModelConfig& config);
Result<> read_mixtral(const ConfigFields& fields, ModelConfig& config);
Result<> read_gpt_oss(const ConfigFields& fields, ModelConfig& config);
Result<> read_glm4_moe(const ConfigFields& fields, ModelConfig& config);
Result<> read_deepseek_v3(const ConfigFields& fields, ModelConfig& config);
Result<> read_gemma3(const ConfigFields& fields, ModelConfig& config);
Result<> read_qwen3_next(const ConfigFields& fields, ModelConfig& config);
Result<> read_nemotron_h(const ConfigFields& fields, ModelConfig& config);

/// Checks that all counts of experts are possible, and that the bytes of the largest weights can be
/// counted, stacked and fused ones included.
Result<> check_weights(const ConfigFields& fields, const ModelConfig& config);

/// Where a config lists its layers: a list of words, or a string with a letter for each.
inline constexpr std::array<std::string_view, 2> kLayerLists = {"layers_block_type", "layer_types"};
inline constexpr std::string_view kLayerPattern = "hybrid_override_pattern";

}  // namespace reshard::hf
