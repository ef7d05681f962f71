// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/base/result.h"

namespace reshard::cli {

/// From now on the first SIGINT or SIGTERM only makes interrupted() true, so that a long operation
/// can clean up; the second ends the process as usual.
void catch_interrupts();

/// True after such a signal.
bool interrupted();

/// The error of an interrupted operation; names the signal.
Error interruption();

/// The error, with "cancelled" at its beginning replaced by "interrupted" if an interrupt did it.
Error as_interrupted(Error error);

/// Makes interrupted() true; for code that waits for signals itself.
void note_interrupt(int signal);

}  // namespace reshard::cli
