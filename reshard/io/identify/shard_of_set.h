// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/result.h"

namespace reshard::identify {

/// Refuses a safetensors file that is one of several of a checkpoint, and names the folder to open
/// instead: an index beside it lists it, or its name says so ("model-00001-of-00002.safetensors").
/// Errors: also those of parsing that index.
Result<> check_not_shard(const std::string& path);

}  // namespace reshard::identify
