// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/model/quant/files.h"

namespace reshard {

/// How a checkpoint says that its weights are stored.
struct StoredWeights {
  QuantMethod method = QuantMethod::fp8;
  QuantFormat format;
  bool static_inputs = false;  ///< every quantised module's input has a scale of its own stored.
};

/// What the quantization_config of a config.json says its weights are stored in. By quant_method:
///   fp8    with a weight_block_size (scale_fmt ue8m0 makes scales powers of two) or without: one
///          scale for each weight
///   mxfp4  experts in MXFP4
///   modelopt  by quant_algo: FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, MXFP8, NVFP4 and
///          W4A16_NVFP4 (in groups of 16); also where it stands in a `quantization` inside
///   compressed-tensors  hf_compressed_tensors.h
///
/// Errors begin with `source`: Code::unsupported for other methods and number formats, with what is
/// read; Code::corrupt for a block size that is none or a word of another type.
Result<StoredWeights> stored_weights(std::string_view text,
                                     std::string_view source = "config.json");

/// The same of the hf_quant_config.json that ModelOpt writes beside a config.json.
Result<StoredWeights> stored_weights_beside(std::string_view text, std::string_view source);

/// The same config.json with a quantization_config of this method and format, in place of the one
/// it has. `plain` are the modules whose weights stay as they are. Errors: a format that the method
/// has no word for. Of what goes into modules it says what vLLM takes: scaled by what is stored
/// (`weights.static_inputs`), else scaled when it comes or, of 4 bits, as it is.
Result<std::string> config_of_quantised_weights(std::string_view text, const StoredWeights& weights,
                                                const std::vector<std::string>& plain,
                                                std::string_view source = "config.json");

}  // namespace reshard
