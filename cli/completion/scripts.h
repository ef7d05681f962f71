// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/command_spec.h"

/// Scripts by which shells complete the program's command line. They need nothing but the shell.
namespace reshard::cli::completion {

std::string bash_script(std::span<const CommandSpec> commands);
std::string zsh_script(std::span<const CommandSpec> commands);
std::string fish_script(std::span<const CommandSpec> commands);

/// The text in single quotes, for bash and zsh.
std::string quoted(std::string_view text);

}  // namespace reshard::cli::completion
