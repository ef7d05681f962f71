// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/base/result.h"

namespace reshard::traced {

/// How a child process ended.
struct ChildEnd {
  int exit_code = 0;       ///< 128 + N if signal N ended it.
  bool timed_out = false;  ///< it was killed.
  std::string said;        ///< the last lines of its standard error, at most 2 KiB.
};

/// Runs a program with arguments (the first is the program, searched in PATH) and waits for it, at
/// most `seconds`. Its standard input ends when this process does, its standard output goes
/// nowhere. Any thread. Errors: Code::not_found for a program that is not there; Code::io.
Result<ChildEnd> run_child(const std::vector<std::string>& arguments, double seconds);

}  // namespace reshard::traced
