// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"

namespace reshard::trace {

/// Checks that write_trace_file() could write this file: creates "PATH.partial" and removes it.
/// Errors: `io` names the path.
Result<> check_trace_file(const std::string& path);

/// Writes a file that appears complete or not at all: as "PATH.partial", which is then renamed to
/// PATH and replaces what was there. Errors: `io` names the path; PATH is then unchanged.
Result<> write_trace_file(const std::string& path, std::string_view text);

}  // namespace reshard::trace
