// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/model/model_layout.h"

namespace reshard::dcp {

/// The layout of a checkpoint that stores tensors in pieces: one rank that holds them all, each as
/// a local tensor. Errors: a tensor of the model of another shape in the checkpoint; a piece that
/// cuts a dimension of the model in between. @pre weights.kind() == Checkpoint::Kind::dcp
Result<ModelLayout> piece_layout(const Checkpoint& weights, std::shared_ptr<const ModelSpec> model);

}  // namespace reshard::dcp
