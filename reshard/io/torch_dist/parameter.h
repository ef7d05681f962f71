// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/model/model_layout.h"

namespace reshard::torch_dist {

/// A whole parameter of Megatron's: the boxes of the model's tensors that it consists of, placed in
/// its own index space.
struct Parameter {
  const Slot* slot = nullptr;
  Dims shape;
  std::vector<PlacedBox> parts;
};

/// Errors: unsupported for a model that stores the experts of a layer in one tensor (gpt-oss): such
/// a tensor has dimensions that Megatron's parameters lack.
Result<> check_parameters(const ModelLayout& layout);

/// The parameter of a slot on rank `r`. The result points into the layout.
Parameter parameter_of(const ModelLayout& layout, SlotId id, Rank r);

/// Its rows [begin, end). @pre begin <= end <= the number of rows
Parameter rows_of(const Parameter& parameter, Index begin, Index end);

/// The part of `part` in `box` of its parameter, placed from the box's origin; none if it is empty.
std::optional<PlacedBox> clipped(const PlacedBox& part, const Box& box);

/// `part` in a tensor with these leading dimensions before its own.
PlacedBox stacked(const PlacedBox& part, const Dims& leading);

}  // namespace reshard::torch_dist
