// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reshard::cli {

/// Writes "reshard: message" to standard error as one line. Replaces control characters, which
/// names in files may contain.
void complain(std::string message);

}  // namespace reshard::cli
