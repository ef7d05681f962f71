// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tl/expected.hpp>

#include "cli/commands.h"

namespace reshard::cli {

/// The command line asked for nothing to be done: help (exit code 0), or it cannot be understood
/// (2).
struct Stop {
  int exit_code = 0;
  std::string
      text;  ///< help, or one line that says what is wrong; no newline at the end of the latter.
};

/// What the command line asks for. Layouts in it are well-formed and of known families.
tl::expected<Command, Stop> parse_command_line(int argc, const char* const* argv);

}  // namespace reshard::cli
