// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>

#include "reshard/model/families/rules/rule_places.h"
#include "reshard/model/layout_spec.h"

namespace reshard::families {

/// The keys of a megatron layout by a card.
struct MegatronCardKeys {
  /// tp, cp, dp, pp, etp, ep, vocab_multiple, for the card's expressions.
  std::map<std::string, Index, std::less<>> numbers;
  Index chunks = 1;      ///< of a stage (virtual stages).
  LayerPlaces layers;    ///< in stages and chunks.
  bool dp_last = false;  ///< data parallel ranks are further apart than stages.
};

/// Errors: keys that are wrong, or that ask for other names or values than cards know: they say
/// what the modules of Transformer Engine hold.
Result<MegatronCardKeys> megatron_card_keys(const LayoutSpec& spec);

}  // namespace reshard::families
