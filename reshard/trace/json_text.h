// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace reshard::trace {

/// Appends `text` as a JSON string with quotation marks, in ASCII. What is not valid UTF-8 becomes
/// U+FFFD, byte by byte.
void append_json_string(std::string& out, std::string_view text);

}  // namespace reshard::trace
