// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>
#include <vector>

#include "reshard/model/config.h"

namespace reshard::identify {

/// The texts before the names of a model of this config, Hugging Face's or Megatron's, by which its
/// embedding is found; "" if it has names of its own. Sorted. One for each model that is there.
std::vector<std::string> model_prefixes(const std::set<std::string>& names,
                                        const ModelConfig& config);

/// The names `prefix` + one of these are those of one model: "holds more than one ..." with the
/// ways to choose. @pre at least two prefixes
std::string ambiguous_prefixes(const std::vector<std::string>& prefixes);

}  // namespace reshard::identify
