// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/base/result.h"
#include "reshard/program/program.h"

namespace reshard {

/// Checks that a program means something, whoever wrote it: enumerators are known; each entry of a
/// table belongs to one op or step, in order; every index is in its table; laws 1 and 2. After it,
/// an executor that knows the buffers' true sizes can run the program without leaving memory.
///
/// Errors: Code::corrupt, which names the rank, the step or table entry and what is wrong. Cost:
/// proportional to the tables; no memory. Not collective.
Result<> check_structure(const Program& program);

}  // namespace reshard
