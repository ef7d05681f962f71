// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace reshard {

/// Why processes of this host cannot read each other's memory (process_vm_readv): what forbids it
/// here, such as a filter of system calls; "" if they can. Tries it between two child processes,
/// which ends within some seconds. Of a process with threads, it must be the only one that runs.
std::string process_reads_unavailable();

}  // namespace reshard
