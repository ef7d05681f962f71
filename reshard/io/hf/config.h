// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/model/config.h"

namespace reshard {

/// What a Hugging Face config.json says of a decoder, read as `transformers` reads it: a key that
/// is absent has that model class's default there (num_key_value_heads: num_attention_heads for
/// Llama, 8 for Mistral, Mixtral, GLM-4.5, gpt-oss and Nemotron-H, 32 for Qwen2 and Qwen3, 4 for
/// Qwen3-MoE and Gemma-3, 2 for Qwen3-Next; hf_architectures.cc has all of them), except that the
/// sizes no model can guess must be there. A null counts as absent, for num_key_value_heads as
/// num_attention_heads, for q_lora_rank and n_shared_experts as none.
///
/// Modules for multi-token prediction are those of num_nextn_predict_layers; a config of
/// Qwen3-Next that does not speak of them has one, as its published checkpoints do.
///
/// A quantization_config is only noted (ModelConfig::quantization): the sizes are those of plain
/// weights.
///
/// @post no product of two sizes, and no single weight's bytes, overflow int64
/// Errors begin with `source`: Code::corrupt for what is not JSON, of the wrong type, out of range
/// or contradictory; Code::unsupported for an unknown architecture, which the message names with
/// the known ones.
Result<ModelConfig> parse_config(std::string_view text, std::string_view source = "config.json");

/// parse_config of a file of at most 16 MiB; errors name its path.
Result<ModelConfig> read_config(const std::string& path);

/// The same config.json with num_hidden_layers replaced. Lists with an entry per layer (their key
/// speaks of layers and their length is the old number) and a hybrid_override_pattern are cut or
/// repeated to the new length; those of multi-token prediction stay;
/// mlp_only_layers loses layers that are gone, max_window_layers is at most the new number;
/// everything else stays, in its order.
/// @pre layers > 0. Errors as parse_config for what is not a JSON object with a number of layers.
Result<std::string> config_with_layers(std::string_view text, Index layers,
                                       std::string_view source = "config.json");

/// The same config.json without its quantization_config, for weights that are plain numbers; the
/// text itself where it has none.
Result<std::string> config_of_plain_weights(std::string_view text,
                                            std::string_view source = "config.json");

}  // namespace reshard
