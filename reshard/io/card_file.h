// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/io/open_model.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/layout_spec.h"

/// Layout cards: rules that were learned from a framework, for one class of models each. They are
/// cards/FRAMEWORK/CLASS.json beside the examples (example_configs.h).
namespace reshard {

/// The framework whose cards a layout of this family reads: `fsdp` reads those of transformers,
/// others those of their own name.
std::string card_framework(const std::string& family);

/// The card of a class. Errors: there is none; it is wrong, or another framework's.
Result<RuleSet> read_card_of(const std::string& framework, const std::string& name);

/// The card that a layout of this family reads for the class that the model's config names; none if
/// there is no config, no card, or a class that is known and whose config was not taken.
/// Errors: a card that is wrong; a class whose card is for other model types.
Result<std::optional<RuleSet>> find_card(const std::string& family, const Model& model);

/// The card of transformers that a layout `fsdp` needs: it says how modules of transformers 5 hold
/// a class without a family. None for a class with a family, for transformers 4, and for a
/// checkpoint with values that nothing reads, which move as they are. Errors: those of find_card();
/// an unknown release of transformers.
Result<std::optional<RuleSet>> find_module_card(const LayoutSpec& spec, const Model& model);

/// A model class that layouts know by its config.
struct KnownClass {
  std::string name;                       ///< of the class in transformers.
  std::vector<std::string> model_types;   ///< those of its configs.
  bool has_family = false;                ///< fsdp and megatron know it without a card.
  std::vector<RuleSet::Card> cards = {};  ///< those that ship, at most one per framework.
};

/// All known classes, sorted by name. Errors: a card that is wrong.
Result<std::vector<KnownClass>> known_classes();

}  // namespace reshard
