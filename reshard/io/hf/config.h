// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/io/files/json.h"
#include "reshard/model/config.h"

namespace reshard {

/// Parses the config.json of a Hugging Face decoder as `transformers` does. An absent key has the
/// default of the model class (architectures.cc lists them; num_key_value_heads, for example, is
/// num_attention_heads for Llama, 8 for Mistral and 32 for Qwen3), except that sizes without a
/// sensible default are required. A null counts as absent; for num_key_value_heads it means
/// num_attention_heads, for q_lora_rank and n_shared_experts none.
///
/// num_nextn_predict_layers is the number of modules for multi-token prediction. If a Qwen3-Next
/// config lacks that key the model has one, as the published checkpoints do.
///
/// A quantization_config is only recorded (ModelConfig::quantization); sizes are those of the
/// dequantised weights.
///
/// NaN and Infinity are numbers, as Python's json writes them. "FSDP" before a known architecture
/// is taken off. Of a decoder alone (Qwen3Model) the tensors have no prefix, and there is no head.
///
/// Errors begin with `source`: Code::corrupt for text that is not JSON and for values of the wrong
/// type, out of range or contradictory; Code::unsupported for an unknown architecture (the message
/// lists the known ones), and for a known one with a model_type of another.
/// @post no product of two sizes, and no single weight's bytes, overflow int64
Result<ModelConfig> parse_config(std::string_view text, std::string_view source = "config.json");

/// parse_config() of a file of at most 16 MiB. Errors name its path.
Result<ModelConfig> read_config(const std::string& path);

/// The model_type of the config.json at `path`, whatever its class; empty if it gives none or
/// cannot be read.
std::string model_type_of(const std::string& path);

/// A config.json with num_hidden_layers replaced. Lists with one entry per layer (the key contains
/// "layer" and the length is the old number) and a hybrid_override_pattern are truncated or
/// repeated to the new length, except those of multi-token prediction. mlp_only_layers loses the
/// layers that no longer exist, and max_window_layers is capped. All else stays, in its order.
/// Errors as parse_config, for text that is not a JSON object with a number of layers. @pre layers
/// > 0
Result<std::string> config_with_layers(std::string_view text, Index layers,
                                       std::string_view source = "config.json");

/// The object that says how a config's weights are quantised, at the top or in the object of a part
/// of the model (text_config); null if there is none.
const Json* quantization_section(const Json& config);

struct ConfigOfDtype {
  std::string text = {};   ///< the same text if it said so already, or says no dtype.
  std::string said = {};   ///< the dtype that it said instead; else empty.
  std::string dtype = {};  ///< this one, as configs name it.
};
/// A config.json whose dtype is this one. @pre is_convertible(dtype)
Result<ConfigOfDtype> config_of_dtype(std::string_view text, DType dtype,
                                      std::string_view source = "config.json");

/// A config.json without the objects that say how its weights are quantised, for plain weights; the
/// same text if it has none.
Result<std::string> config_of_plain_weights(std::string_view text,
                                            std::string_view source = "config.json");

}  // namespace reshard
