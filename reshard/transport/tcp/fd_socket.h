// SPDX-License-Identifier: Apache-2.0
// Connections for fd:// rendezvous, which need no address: rank 0 has one end of an inherited
// socketpair() of SOCK_SEQPACKET, all other ranks have the other end. To connect, a rank makes a
// new socket pair and passes one end of it through (SCM_RIGHTS).
#pragma once

#include "reshard/base/file.h"
#include "reshard/base/result.h"

namespace reshard::tcp {

/// True if the descriptor is an end of such a socket pair.
bool is_rendezvous_socket(int fd);

/// Passes one end of a new connection to rank 0 and returns the other end, non-blocking. Errors:
/// `io` if rank 0 is gone or too many connections wait there.
Result<FileDescriptor> connect_through(int socket);

/// A connection accepted from a listening socket or a rendezvous socket.
struct Accepted {
  FileDescriptor socket;  ///< non-blocking; empty if none was waiting, and errno says why.
  bool last = false;      ///< no rank can connect any more: all other ends are closed.
};
Accepted accept_connection(int listener);

}  // namespace reshard::tcp
