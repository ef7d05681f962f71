// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <tl/expected.hpp>

#include "cli/commands.h"

namespace reshard::cli {

/// There is nothing to do: the command line asks for help (exit code 0) or is wrong (2).
struct Stop {
  int exit_code = 0;
  std::string text;  ///< the help, or one line without a newline that says what is wrong.
};

/// Parses the command line. Layouts in the result are well-formed and of known families.
tl::expected<Command, Stop> parse_command_line(int argc, const char* const* argv);

}  // namespace reshard::cli
