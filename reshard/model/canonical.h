// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/model/config.h"
#include "reshard/model/tensor.h"

namespace reshard {

/// The tensors of the checkpoint that transformers writes for this config, in module order,
/// followed by those of the modules for multi-token prediction, which transformers does not write.
/// Tied models and bare decoders have no lm_head.weight. Errors: a config that does not describe
/// all its layers; sizes that overflow.
Result<ModelSpec> canonical_tensors(const ModelConfig& config);

/// Checks that a checkpoint has exactly the tensors of its config, with these shapes, in any order.
/// Dtypes may differ: the checkpoint's are used. Errors name the first tensor that is missing (and
/// what is there instead), unknown, or of another shape (with both shapes).
Result<> check_against(const ModelSpec& checkpoint, const ModelSpec& config);

}  // namespace reshard
