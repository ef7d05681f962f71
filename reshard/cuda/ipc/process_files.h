// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "reshard/base/file.h"

namespace reshard::ipc {

/// Random; of this process alone, also after fork(). Any thread. Errors: `io`.
Result<std::uint64_t> process_token();
/// The PID namespace of this process; equal process ids mean one process only where it is equal.
std::uint64_t pid_namespace();
/// If Yama restricts ptrace, permits other processes of the user to take this one's files.
void let_peers_take_files();
/// A copy of a file descriptor of another process. Errors: `unsupported`, with the reason.
Result<FileDescriptor> take_file(std::int32_t pid, std::int32_t file);

}  // namespace reshard::ipc
