// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/io/open_model.h"

namespace reshard::identify {

/// Reads the config at `model.config_path` into the model, and orders the tensors by it.
Result<> apply_config(ModelSpec stored, Model& model);

/// The same for a checkpoint of Megatron's dist_checkpointing.
Result<> apply_megatron(Model& model);

}  // namespace reshard::identify
