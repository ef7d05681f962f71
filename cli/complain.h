// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reshard::cli {

/// Writes "reshard: message" to standard error: one line, and no more than text, as names in files
/// may hold anything.
void complain(std::string message);

}  // namespace reshard::cli
