// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/io/open_model.h"
#include "reshard/model/families/transformers_modules.h"

namespace reshard::identify {

/// Replaces, in `stored`, tensors that hold the experts of a layer as modules of transformers 5 do
/// by the single tensors of `wanted`, and names that only those modules have (Mixtral's "mlp") by
/// those of `wanted`. @return all tensors of `wanted` as the files hold them; nothing if they hold
/// each by itself. Errors: a stack of another shape (with both shapes), or of quantised experts.
Result<std::vector<ModuleTensor>> take_stacked_experts(const ModelSpec& wanted,
                                                       const ModelConfig& config,
                                                       const Model& model, ModelSpec& stored);

}  // namespace reshard::identify
