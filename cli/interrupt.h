// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/base/result.h"

namespace reshard::cli {

/// From now on the first SIGINT or SIGTERM only makes interrupted() true, so that a long operation
/// can stop in order and leave nothing half-written; the second ends the process as usual.
void catch_interrupts();

/// True once one of them came.
bool interrupted();

/// The error of what it ended: names the signal.
Error interruption();

/// The error, with "cancelled" at its beginning replaced by "interrupted" if an interrupt did it.
Error as_interrupted(Error error);

/// For who waits for signals himself: interrupted() is true from now on.
void note_interrupt(int signal);

}  // namespace reshard::cli
