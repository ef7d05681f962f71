// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace reshard::cli {

/// From now on the first SIGINT or SIGTERM only makes interrupted() true, so that a long operation
/// can stop in order and leave nothing half-written; the second ends the process as usual.
void catch_interrupts();

/// True once one of them came.
bool interrupted();

/// For who waits for signals himself: interrupted() is true from now on.
void note_interrupt();

}  // namespace reshard::cli
