// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/io/open_model.h"

namespace reshard::identify {

/// Removes from `stored` the copies that the config explains, and records in the config whether the
/// modules for multi-token prediction have theirs. Errors: a copy that differs from its original.
Result<> take_copies(const Model& model, ModelConfig& config, ModelSpec& stored);

}  // namespace reshard::identify
