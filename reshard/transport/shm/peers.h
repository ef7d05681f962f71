// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/file_descriptor.h"
#include "reshard/transport/control.h"
#include "reshard/transport/shm/segment.h"

namespace reshard::shm {

/// Ways by which one rank reaches another's memory, as bits. Staging through the segments is always
/// there.
inline constexpr std::uint8_t kMapped = 1, kReadv = 2;

/// Ways that RESHARD_SHM allows ("mapped,readv,ring"); all when it is not set. "passed" in it has
/// the files sent over a socket even where /proc would do. Errors: `invalid_argument`.
struct Allowed {
  std::uint8_t ways = kMapped | kReadv;
  bool through_proc = true;
};
Result<Allowed> allowed_ways();

/// One rank of the group as this rank reaches it.
struct Peer {
  Segment segment;
  FileDescriptor arena;         ///< its shared_arena's file.
  FileDescriptor pidfd;         ///< readable once it died; none for ranks of this process.
  pid_t pid = 0;                ///< 0 when it is in another pid namespace.
  std::uint8_t reach = 0;       ///< ways from this rank into its memory.
  std::uint8_t reached_by = 0;  ///< ways from it into this rank's memory.
};

struct Peers {
  std::uint64_t group = 0;  ///< the same on all ranks, differs between groups.
  std::vector<Peer> peers;  ///< by rank, this one too.
};

/// Whether the segments have rings for messages, or only say who their owner is.
enum class Mail : std::uint8_t { none, rings };

/// Collective. Gives every rank every other's files and probes what is allowed between each two.
/// Errors, the same on all ranks: `unsupported` names who is on another host or cannot be reached
/// and why; what the control plane says.
Result<Peers> meet(ControlPlane& control, Deadline deadline, Mail mail = Mail::rings);

/// Empty, or why this host cannot do it at all.
std::string reason_against();

}  // namespace reshard::shm
