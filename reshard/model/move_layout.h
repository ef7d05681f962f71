// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/model/model_layout.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

/// The same layout on other ranks: the lowest becomes `first`, and the distances between ranks
/// stay. Slots keep their ids. Errors: a negative rank; a layout without ranks.
Result<ModelLayout> move_layout(const ModelLayout& layout, Rank first);
/// The same for a quantised layout: values and what is stored move together.
Result<QuantisedLayout> move_layout(const QuantisedLayout& layout, Rank first);

}  // namespace reshard
