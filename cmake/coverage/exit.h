// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Has _exit() call `dump`, which writes the counters of one program or module; at most 64 at a
/// time.
void reshard_coverage_add(void (*dump)());
/// Before the module is unloaded.
void reshard_coverage_remove(void (*dump)());
