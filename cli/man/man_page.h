// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "cli/command_spec.h"

namespace reshard::cli::man {

/// The manual page of the program, reshard(1), in the man macros of roff: the commands with their
/// options, examples, exit codes and environment variables. The same bytes on every machine.
std::string page(std::span<const CommandSpec> commands);

}  // namespace reshard::cli::man
