// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/model/quant/files.h"

namespace reshard {

/// The quantisation of a checkpoint's weights according to its config.
struct StoredWeights {
  /// The limit on the formats of one checkpoint, all of which are tried on each tensor.
  static constexpr std::size_t kMaxFormats = 64;

  QuantMethod method = QuantMethod::fp8;
  QuantFormat format;
  bool static_inputs = false;            ///< an input scale is stored for every quantised module.
  std::vector<QuantFormat> others = {};  ///< formats of some weights, if not all have `format`.
  std::map<std::string, QuantFormat> of_module = {};  ///< what is said of modules, by name.

  StoredFormats formats() const;
};

/// The quantisation of the weights that a config declares.
struct SaidQuantisation {
  std::string method;   ///< quant_method, "unknown" if it has none; empty: it says nothing.
  std::string form;     ///< the method and what the section calls the form, for messages.
  bool caches = false;  ///< it also says how KV caches are quantised.
};

/// Finds the section in a config.json, at the top or in the object of a part of the model
/// (text_config). Errors: not a JSON object.
Result<SaidQuantisation> said_quantisation(std::string_view text,
                                           std::string_view source = "config.json");

/// The same for the hf_quant_config.json that ModelOpt writes beside a config.json.
Result<SaidQuantisation> said_quantisation_beside(std::string_view text, std::string_view source);

/// Reads the quantization_config of a config.json. By quant_method:
///   fp8                 weight_block_size, or one scale per weight without it; scale_fmt ue8m0
///   means
///                       that scales are powers of two
///   mxfp4               experts in MXFP4
///   modelopt            by quant_algo: FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8, NVFP4 and
///                       W4A16_NVFP4 (in groups of 16); MIXED_PRECISION: that of each module in
///                       quantized_layers; also inside a nested `quantization`
///   compressed-tensors  see compressed_tensors.h
///   fbgemm_fp8          a scale per row
///
/// Errors begin with `source`: Code::unsupported for other methods and formats (the message lists
/// the supported ones); Code::corrupt for an invalid block size or a value of the wrong type.
Result<StoredWeights> stored_weights(std::string_view text,
                                     std::string_view source = "config.json");

/// The same for the hf_quant_config.json that ModelOpt writes beside a config.json.
Result<StoredWeights> stored_weights_beside(std::string_view text, std::string_view source);

/// A config.json with its quantization_config replaced by one for this method and format. `plain`
/// lists the modules whose weights are not quantised. Activations are declared as vLLM expects
/// them: quantised by stored scales (`weights.static_inputs`), else dynamically or, for 4-bit
/// formats, not at all. Errors: a format that the method cannot express.
Result<std::string> config_of_quantised_weights(std::string_view text, const StoredWeights& weights,
                                                const std::vector<std::string>& plain,
                                                std::string_view source = "config.json");

}  // namespace reshard
