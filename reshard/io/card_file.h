// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/io/open_model.h"
#include "reshard/model/families/rules.h"

/// Layout cards: rules that were learned from a framework, for one class of models each. They are
/// cards/FRAMEWORK/CLASS.json beside the examples (example_configs.h).
namespace reshard {

/// The card for the class that the model's config names; none if there is no config, no card, or a
/// family for the class.
/// Errors: a card that is wrong; a class whose card is for other model types.
Result<std::optional<RuleSet>> find_card(const std::string& framework, const Model& model);

/// A class of models that layouts with a config know.
struct KnownClass {
  std::string name;                      ///< of the class in transformers.
  std::vector<std::string> model_types;  ///< of the configs that are accepted.
  bool has_family = false;  ///< fsdp, vllm, sglang and megatron know it without a card.
  std::vector<RuleSet::Card> cards = {};  ///< those that ship, by framework.
};

/// All of them, sorted by name. Errors: a card that is wrong.
Result<std::vector<KnownClass>> known_classes();

}  // namespace reshard
