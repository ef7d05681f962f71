// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/base/file_descriptor.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"

namespace reshard::shm {

struct PassedFiles {
  FileDescriptor segment, arena;
};

/// Hands this rank's files to peers, and takes theirs, over unix sockets without a path: for peers
/// whose /proc this rank may not read. They must be of the same user and network namespace.
class Passer {
 public:
  /// Peers find it by the nonce. Errors: io.
  Result<> listen(std::uint64_t nonce);
  /// Connects to a peer that listens; does not wait for it. Errors: `unsupported`.
  Result<> ask(Rank peer, std::uint64_t nonce);
  /// Gives the files to as many peers as have asked. Errors: `deadline`, io.
  Result<> serve(int peers, int segment, int arena, Deadline deadline);
  /// The files of a peer that was asked. Errors: `deadline`, `unsupported`.
  Result<PassedFiles> take(Rank peer, Deadline deadline);

 private:
  struct Asked {
    Rank peer;
    FileDescriptor socket;
  };
  FileDescriptor listener_;
  std::vector<Asked> asked_;
};

}  // namespace reshard::shm
