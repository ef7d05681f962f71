// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/quant_format.h"
#include "reshard/base/result.h"

namespace reshard {

/// The format that the quantization_config of a config.json says its weights are stored in:
/// quant_method fp8, with a weight_block_size (scales `X.weight_scale_inv`; scale_fmt ue8m0 makes
/// them powers of two) or without (one scale `X.weight_scale` per weight).
///
/// Errors begin with `source`: Code::unsupported for other methods and number formats, with what is
/// read; Code::corrupt for a block size that is none.
Result<QuantFormat> quantised_format(std::string_view text,
                                     std::string_view source = "config.json");

/// The same config.json with a quantization_config of this format, in place of the one it has.
/// `plain` are the modules whose weights stay as they are (modules_to_not_convert). Errors as
/// above: a format that quantised_format() does not read.
Result<std::string> config_of_quantised_weights(std::string_view text, const QuantFormat& format,
                                                const std::vector<std::string>& plain,
                                                std::string_view source = "config.json");

}  // namespace reshard
