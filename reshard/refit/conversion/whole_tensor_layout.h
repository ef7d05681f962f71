// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// A layout in which some tensors of the target's model lie whole, each on one of the target's
/// ranks, those that follow each other on different ones; stored as the target stores values. For
/// blocks that both sides cut. `tensors` by TensorId. @pre the target has a rank
Result<std::shared_ptr<const ModelLayout>> whole_tensor_layout(const ModelLayout& target,
                                                               const std::vector<bool>& tensors);

}  // namespace reshard
