// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/model/config.h"
#include "reshard/model/model_layout.h"
#include "reshard/model/reported/gathered_metadata.h"

namespace reshard {

/// The report of rank r of a live Megatron model with this layout: names with the stage's own layer
/// numbers, the attributes of its parameters, and the groups of its process grid.
/// @pre a megatron layout of attention models without vocabulary padding, or with the same padding
/// on both sides
RankMetadata reported_by(const ModelLayout& layout, const ModelConfig& config, Rank r);

/// The gathered reports of all ranks; aborts on error.
GatheredMetadata reported_by(const ModelLayout& layout, const ModelConfig& config);

}  // namespace reshard
