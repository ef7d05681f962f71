// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/base/result.h"
#include "reshard/model/config_values.h"

namespace reshard::hf {

/// Reads any config.json, of a class that is known or not. Numbers of lists, and of objects more
/// than four deep, are left out. Errors: those of the file, and of its JSON.
Result<ConfigValues> read_config_values(const std::string& path);

/// The same from its text. Errors do not name the file.
Result<ConfigValues> parse_config_values(std::string_view text);

}  // namespace reshard::hf
