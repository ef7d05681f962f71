// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "reshard/model/model_layout.h"

namespace reshard {

/// A layout whose first rank, the lowest of its ranks, is to be `first`.
struct PlacedLayout {
  std::shared_ptr<const ModelLayout> layout;
  Rank first;
};

/// One layout of several side by side, such as those of engines that take the same weights: the
/// ranks of each move together. Slots are in the order of the layouts, and in each in its own
/// order. A tensor is omitted if all omit it.
///
/// Errors: `invalid_argument` if there is none, they are of different models, ranks of two meet, or
/// two store a tensor in different forms (named).
Result<ModelLayout> place_layouts(std::string name, std::span<const PlacedLayout> layouts);

}  // namespace reshard
