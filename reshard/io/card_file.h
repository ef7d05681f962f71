// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

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

}  // namespace reshard
