// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

/// A quantised layout whose first rank, the lowest of its ranks, is to be `first`.
struct PlacedQuantisedLayout {
  std::shared_ptr<const QuantisedLayout> layout;
  Rank first;
};

/// place_layouts() of quantised layouts: one of all of their values, quantised as they are.
///
/// Errors: those of place_layouts() and quantise_layout(); `unsupported` if they are quantised in
/// different ways, or a rank would store other local tensors than in its own layout (named).
Result<QuantisedLayout> place_layouts(std::string name,
                                      std::span<const PlacedQuantisedLayout> layouts);

}  // namespace reshard
