// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reshard/model/model_layout.h"

namespace reshard {

/// Slots of a layout that have memory only while their tensors are in transit (a staging copy of
/// tensors that are then quantised).
struct StagedSlots {
  std::shared_ptr<const ModelLayout> layout;
  std::vector<SlotId> slots;
};

/// Groups the tensors of staged slots so that the groups can be moved one after another
/// (PlanOptions::only) with little memory. Tensors that share a staged slot, on any rank of any
/// side, are in one group. The staged bytes of a group on any rank, over all sides, do not exceed
/// `cap_bytes`, unless inseparable tensors alone exceed it; these form a group of their own.
///
/// Groups and their tensors are in model order; each tensor of a staged slot is in one group, other
/// tensors are in none. A pure function of its arguments, so all ranks compute the same groups.
/// Cost: proportional to slots times the ranks that hold them.
/// @pre the layouts' models are equal
std::vector<std::vector<TensorId>> waves_of(std::span<const StagedSlots> sides, Index cap_bytes);

}  // namespace reshard
