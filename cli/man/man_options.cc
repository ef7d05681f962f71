// SPDX-License-Identifier: Apache-2.0
#include "cli/command_spec.h"

namespace reshard::cli {

CommandSpec man_spec() {
  CommandSpec spec{"man", "", "prints the manual page of the program, for man and groff"};
  spec.examples = {{"man", "to read it: reshard man | man -l -"}};
  spec.command = [] { return ManArguments{}; };
  return spec;
}

}  // namespace reshard::cli
