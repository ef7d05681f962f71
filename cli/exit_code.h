// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/base/result.h"

/// The program's exit codes, the same for all commands.
namespace reshard::cli {

constexpr int kDone = 0;      ///< what was asked for.
constexpr int kFailed = 1;    ///< it failed, or the checkpoints differ.
constexpr int kWrongUse = 2;  ///< the request is wrong, by itself or for these inputs.
constexpr int kInterrupted = 130;

/// The exit code for an error that ended a command.
int exit_code(const Error& error);

}  // namespace reshard::cli
