// SPDX-License-Identifier: Apache-2.0
// How spawned ranks connect to rank 0 without an address: rank 0 holds one end of an inherited
// socketpair() of SOCK_SEQPACKET, all other ranks hold the other end. To connect, a rank makes a
// socket pair of its own and sends one end of it through (SCM_RIGHTS).
#pragma once

#include "reshard/base/file_descriptor.h"
#include "reshard/base/result.h"

namespace reshard::tcp {

/// True if the descriptor is an end of such a socket pair.
bool is_door(int fd);

/// Passes one end of a new connection through and returns the other, non-blocking. Errors: `io`:
/// the other side is gone, or too many connections are waiting there.
Result<FileDescriptor> knock(int door);

/// A connection accepted from a listening socket or from a door.
struct Caller {
  FileDescriptor socket;  ///< non-blocking; empty when none was waiting, errno says why.
  bool last = false;      ///< no rank can connect any more: all other ends are closed.
};
Caller accept_caller(int listener);

}  // namespace reshard::tcp
