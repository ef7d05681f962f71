// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/model/families/transformers_modules.h"
#include "reshard/model/model_layout.h"

namespace reshard::dcp {

/// The layout of a checkpoint that stores tensors in pieces: one rank that holds them all, each as
/// a local tensor. `form`: as Model::file_form. Errors: a tensor of the model of another shape in
/// the checkpoint; a piece that cuts a dimension of the model in between.
/// @pre weights.kind() == Checkpoint::Kind::dcp
Result<ModelLayout> piece_layout(const Checkpoint& weights, std::shared_ptr<const ModelSpec> model,
                                 const std::vector<ModuleTensor>& form);

}  // namespace reshard::dcp
