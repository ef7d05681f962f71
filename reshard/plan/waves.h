// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reshard/model/model_layout.h"

namespace reshard {

/// Slots of a layout that have memory only while their tensors are on the way (a landing copy of
/// what is then quantised).
struct StagedSlots {
  std::shared_ptr<const ModelLayout> layout;
  std::vector<SlotId> slots;
};

/// Groups the tensors of staged slots so that one group after the other can be moved
/// (PlanOptions::only) through little memory: tensors that share a staged slot, on any rank of any
/// side, are in one group; and no rank's bytes of the staged slots of a group, all sides together,
/// exceed `cap_bytes`, unless they are of tensors that cannot be parted, which are alone then.
///
/// Groups and what is in them are in the order of the model, each tensor once; tensors in no staged
/// slot are in none. A pure function of its arguments, so all ranks find the same. Cost:
/// proportional to slots times the ranks that hold them.
/// @pre the layouts' models are equal
std::vector<std::vector<TensorId>> waves_of(std::span<const StagedSlots> sides, Index cap_bytes);

}  // namespace reshard
