// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>

#include "reshard/model/model_layout.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

/// The same layout on other ranks: the lowest becomes `first`, and the distances between ranks
/// stay. Slots keep their ids. Errors: a negative rank; a layout without ranks.
Result<ModelLayout> move_layout(const ModelLayout& layout, Rank first);
/// The same for a quantised layout: values and what is stored move together.
Result<QuantisedLayout> move_layout(const QuantisedLayout& layout, Rank first);

/// The layout in which each rank holds what it holds in the one of `parts` that it belongs to: for
/// example, those of engines in different roles. A plan towards it serves all of them at once. The
/// slots of the first part come first. Its name is theirs, joined by " + ".
///
/// A tensor is omitted only where all parts omit it. Errors: no part; different models; a rank in
/// two parts; a tensor that one part holds and another neither holds nor omits (named), which a
/// plan towards that part alone would refuse; a tensor that parts store in different forms (both
/// local tensors are named).
Result<ModelLayout> join_layouts(std::span<const std::shared_ptr<const ModelLayout>> parts);

}  // namespace reshard
