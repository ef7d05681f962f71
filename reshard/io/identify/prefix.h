// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/io/checkpoint/checkpoint.h"

namespace reshard::identify {

/// What the names of a model in a trainer's state begin with ("model.", "app.model."): with its
/// config, the text before most of the config's names; else nothing.
std::string prefix_of(const Checkpoint& weights);

}  // namespace reshard::identify
