// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/io/hf/config_fields.h"

namespace reshard::hf {

/// The weight formats of a compressed-tensors quantization_config: those of its config_groups, one
/// or more, each once, at most `most`. `targets` and `ignore` are not read: the files tell which
/// modules are quantised. Formats: 8-bit floats per tensor, channel, block or group (MXFP8 in
/// groups of 32 with uint8 scales), 4-bit floats in groups of 32 (MXFP4) or, with a global scale,
/// of 16 (NVFP4), and symmetric integers of 4 bits (packed) or 8 bits (packed or not) per channel
/// or group. Their scales are returned as BF16: the config does not say their dtype, the files do.
///
/// Errors begin with `source`: Code::unsupported for other weights, for groups that are
/// presets, and for sparse or transformed weights; Code::corrupt for a malformed config.
Result<std::vector<QuantFormat>> compressed_tensors_formats(const ConfigFields& config,
                                                            std::string_view source,
                                                            std::size_t most);

/// Refuses sparse and transformed (rotated) weights, whose codes are not those of the plain matrix.
/// Error: Code::unsupported; the message begins with `source`.
Result<> check_not_transformed(const ConfigFields& config, std::string_view source);

/// The quantization_config of weights in this format. Activations are declared as engines expect
/// them: quantised dynamically (FP8, MXFP8) or not at all (4-bit formats); per-tensor FP8 with
/// `static_inputs`: by stored scales. @pre supports(compressed_tensors, format)
Json::Object compressed_tensors_object(const QuantFormat& format, bool static_inputs,
                                       const std::vector<std::string>& plain);

}  // namespace reshard::hf
