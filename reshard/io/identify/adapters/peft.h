// SPDX-License-Identifier: Apache-2.0
// LoRA adapters in the files of PEFT 0.21: adapter_config.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard::identify {

/// The part of an adapter's config that decides values.
struct PeftConfig {
  double alpha = 1;  ///< lora_alpha.
  std::vector<std::pair<std::string, double>> alpha_patterns = {};
  bool rank_stabilised = false;  ///< use_rslora.
  bool fan_in_fan_out = false;   ///< weights are stored as [in, out].

  /// The factor of B A for a module: alpha / rank, or alpha / sqrt(rank). Of the patterns, the
  /// first that matches the module's name, or its end after a ".", says alpha.
  double scale(std::string_view module, Index rank) const;
};

/// Errors, which begin with `source`: Code::corrupt for values of another type than PEFT writes;
/// Code::unsupported for adapters that change weights in another way than by A and B, for those
/// whose initialisation changed the base weights, and for patterns with other characters than a
/// leading "^", "." and "\.".
Result<PeftConfig> parse_peft_config(std::string_view text, std::string_view source);

}  // namespace reshard::identify
