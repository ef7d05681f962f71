// SPDX-License-Identifier: Apache-2.0
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/man/man_page.h"
#include "cli/measure.h"

namespace reshard::cli {

Result<int> execute(const ManArguments&) {
  print(man::page(command_specs()));
  return kDone;
}

}  // namespace reshard::cli
