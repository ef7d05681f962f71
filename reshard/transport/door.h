// SPDX-License-Identifier: Apache-2.0
// A way into a group that has no name and no address: rank 0 holds one end of a socketpair() of
// SOCK_SEQPACKET, all others the other end. Who wants in makes a connection of its own and passes
// one end of it through.
#pragma once

#include "reshard/base/file_descriptor.h"
#include "reshard/base/result.h"

namespace reshard::tcp {

/// Whether this process has such an end open under this number.
bool is_door(int fd);

/// Passes one end of a new connection through and returns the other, non-blocking. Errors: `io`:
/// the other side is gone, or has too many that wait.
Result<FileDescriptor> knock(int door);

/// Who was waiting at a listening socket or at a door.
struct Caller {
  FileDescriptor socket;  ///< non-blocking; nothing when nobody was there, and errno says why.
  bool last = false;      ///< nobody can come any more.
};
Caller accept_caller(int listener);

}  // namespace reshard::tcp
