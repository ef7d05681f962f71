// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/base/ids.h"
#include "reshard/base/result.h"
#include "reshard/transport/deadline.h"

namespace reshard::shm {

struct PassedFiles {
  FileDescriptor segment, arena;
};

/// Exchanges the files of ranks over abstract unix sockets, for peers whose /proc is not
/// accessible. Both processes must have the same user and network namespace.
class FdPassing {
 public:
  /// Listens at an address derived from the nonce. Errors: io.
  Result<> listen(std::uint64_t nonce);
  /// Connects to a listening peer, without waiting for its files. Errors: `aborted` if the peer has
  /// left, which is known only of a peer in the same network namespace; `unsupported`.
  Result<> ask(Rank peer, std::uint64_t nonce, bool same_network);
  /// Passes the files to `peers` peers that asked. Errors: `deadline`, io.
  Result<> serve(int peers, int segment, int arena, Deadline deadline);
  /// Receives the files of a peer that was asked. Errors: `deadline`, `unsupported`.
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
