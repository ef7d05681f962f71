// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/model/config.h"
#include "reshard/model/tensor.h"

namespace reshard {

/// The tensors of a checkpoint that transformers writes for this config, in the order of its
/// modules, and those of its modules for multi-token prediction, which it does not write. Tied
/// models have no lm_head.weight. Errors: a config that does not say what all its layers are
/// made of; sizes that overflow.
Result<ModelSpec> canonical_tensors(const ModelConfig& config);

/// Checks that a checkpoint's tensors are exactly those of its config, in any order, with these
/// shapes. Errors name the first tensor that is missing, unknown, or of another shape (both shapes
/// given). dtypes may differ: a checkpoint's own are taken.
Result<> check_against(const ModelSpec& checkpoint, const ModelSpec& config);

}  // namespace reshard
