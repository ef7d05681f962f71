// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/model/config.h"
#include "reshard/model/model_layout.h"
#include "reshard/model/reported/gathered_metadata.h"

namespace reshard {

/// What rank r of a live Megatron model with this layout would report: names with the stage's own
/// layer numbers, the attributes of its parameters, the groups of its process grid.
/// @pre a megatron layout of attention models whose vocabulary needs no padding, or whose sides pad
/// alike
RankMetadata reported_by(const ModelLayout& layout, const ModelConfig& config, Rank r);

/// The same of all ranks, gathered; aborts on error.
GatheredMetadata reported_by(const ModelLayout& layout, const ModelConfig& config);

}  // namespace reshard
