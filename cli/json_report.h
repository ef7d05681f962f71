// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/files/json.h"

namespace reshard::cli {

/// The report of a command as `--json` prints it: one object with the key `schema` before the given
/// ones, "reshard.COMMAND/1", and a newline after it. The number grows when a key goes or changes
/// its meaning; a new key leaves it. docs/operations.md lists the reports.
std::string json_report(std::string_view command, Json::Object members);

/// The texts as a list.
Json json_list(const std::vector<std::string>& texts);

/// The version of the program: "0.1.0".
std::string_view version_text();

}  // namespace reshard::cli
