// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/transport/control.h"
#include "reshard/transport/shm/segment.h"

namespace reshard::shm {

/// Methods by which a rank can access the memory of another, as bits. Staging through the segments
/// is always possible.
inline constexpr std::uint8_t kMapped = 1, kReadv = 2;

/// The methods that the environment variable RESHARD_SHM allows ("mapped,readv,ring"); all if it is
/// not set.
struct AllowedAccess {
  std::uint8_t methods = kMapped | kReadv;
  bool through_proc = true;  ///< false ("passed"): files are sent over a socket.
};
/// Errors: `invalid_argument` for an unknown word.
Result<AllowedAccess> allowed_access();

/// A peer and the means by which this rank accesses it.
struct Peer {
  Segment segment;
  FileDescriptor arena;         ///< the file of its shared_arena.
  FileDescriptor pidfd;         ///< readable once it has died; none for ranks of this process.
  pid_t pid = 0;                ///< 0 if in another pid namespace.
  std::uint8_t reach = 0;       ///< methods from this rank to its memory.
  std::uint8_t reached_by = 0;  ///< methods from it to this rank's memory.
};

struct Peers {
  std::uint64_t group = 0;  ///< identical on all ranks, differs between groups.
  std::vector<Peer> peers;  ///< by rank, including this one.
};

/// Whether the segments have rings for messages.
enum class Mail : std::uint8_t { none, rings };

/// Collective. Exchanges the files of all ranks and probes which methods work between each pair.
/// Errors, identical on all ranks: `unsupported` names a rank that is on another host or cannot be
/// reached, and why; `aborted` names a rank that has left; errors of the control plane.
Result<Peers> connect_peers(ControlPlane& control, Deadline deadline, Mail mail = Mail::rings);

/// Why this host does not support shared memory, or "".
std::string unsupported_reason();

}  // namespace reshard::shm
