// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"
#include "reshard/io/hf/config_fields.h"

namespace reshard::hf {

/// What a quantization_config of compressed-tensors says of weights. Internal to io. All its
/// config_groups must say the same of weights; which modules they are about is what the files hold
/// (targets and ignore are not read). By the arguments of weights: float of 8 bits by tensor,
/// channel, block or group (in groups of 32 with scales of uint8: MXFP8), of 4 bits in groups of 32
/// (MXFP4) or, with a global scale, of 16 (NVFP4).
///
/// Errors begin with `source`: Code::unsupported for other weights, for groups that differ or are
/// presets, and for weights that were made sparse or transformed; Code::corrupt for what is no such
/// config.
Result<QuantFormat> compressed_tensors_format(const ConfigFields& config, std::string_view source);

/// The quantization_config of weights in this format, activations as the format's engines want
/// them: scaled when they come (FP8, MXFP8) or as they are; of one scale for each weight with
/// `static_inputs` by the scales that are stored. @pre supports(compressed_tensors, format)
Json::Object compressed_tensors_object(const QuantFormat& format, bool static_inputs,
                                       const std::vector<std::string>& plain);

}  // namespace reshard::hf
