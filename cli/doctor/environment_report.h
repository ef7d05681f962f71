// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/table.h"

/// The list of environment variables that `reshard doctor --environment` prints, without the
/// internal ones. A variable is set here if this process has it, even if it is empty.
namespace reshard::cli::doctor {

/// The variables by kind, with their meanings and choices; those that are set have a mark and their
/// value.
std::string environment_text(const Style& style);

/// The report `reshard.environment/1`.
std::string environment_json();

}  // namespace reshard::cli::doctor
