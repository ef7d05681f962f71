// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/model/config.h"
#include "reshard/model/families/rules.h"

namespace reshard {

/// The card of "vllm" or "sglang" for the class of this config's model_type; aborts on error.
const RuleSet& card_of(const std::string& framework, const ModelConfig& config);

}  // namespace reshard
