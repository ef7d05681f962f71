// SPDX-License-Identifier: Apache-2.0
#include "cli/exit_code.h"

#include "cli/interrupt.h"

namespace reshard::cli {

int exit_code(const Error& error) {
  if (interrupted()) return kInterrupted;
  return error.code == Code::invalid_argument ? kWrongUse : kFailed;
}

}  // namespace reshard::cli
