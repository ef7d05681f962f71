// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "reshard/exec/direct/gpu_sources.h"
#include "reshard/exec/host/program_executor.h"
#include "reshard/program/compile.h"

namespace reshard::direct {

/// How the bytes of a refit move between this rank and each of its peers, and the memory of peers
/// that is read. Each receiver decides: it reads what it can reach, unless that memory is not
/// mapped and its runs are so short that messages cost far less. Host memory is reached through the
/// transport; a rank with a GPU reaches the GPU memory of ranks of its host, whatever the
/// transport.
class PairPaths {
 public:
  /// Collective. Shares the memory that this rank sends from and opens the memory that it reads, if
  /// `reaches` (some rank may); then agrees. Errors, after which the caller ends the
  /// group: memory missing (named); the transport's.
  static Result<PairPaths> agree(const PrepareArguments& work, bool reaches);

  PairPath from(Rank src) const { return from_.at(src); }
  PairPath to(Rank dst) const { return to_.at(dst); }
  /// True if some pair of the whole group has such a way.
  bool reads() const { return uses_[0] || uses_[1]; }
  bool gets() const { return uses_[1]; }
  bool messages() const { return uses_[2]; }
  /// Why some pair takes messages although they were not asked for: that of the lowest rank.
  const std::string& reason() const { return reason_; }

  /// With the ranks between which GPU memory is read: opens what is behind the same addresses now,
  /// where that changed. True if some memory of a peer has another address here. All those ranks
  /// call it, none of whose GPUs reads memory of a peer then. Errors, after which the caller ends
  /// the group: memory that cannot be shared or opened any more; the transport's.
  Result<bool> renew(const PrepareArguments& work);

  /// The memory of a peer's source that this rank reads. The result refers to this object.
  Result<host::BufferPlace> place(const PrepareArguments& work, Rank r, SlotId slot) const;

 private:
  struct Peer {
    MemoryTable table;
    std::vector<RemoteMemory> memory;  ///< by span.
    GpuPeer on_gpu;                    ///< that the memory is of, if it is a GPU's.
  };

  Result<> open_peers(const PrepareArguments& work);
  Result<MemoryTable> share(const PrepareArguments& work);
  Result<std::string> open(const PrepareArguments& work, Rank rank, MemoryTable table);
  Result<std::string> open_on_gpu(const PrepareArguments& work, Rank rank, MemoryTable table);
  Result<std::string> open_on_host(const PrepareArguments& work, Rank rank, MemoryTable table);
  Result<bool> reopen(const PrepareArguments& work, Rank rank, MemoryTable table);
  Result<> choose(const PrepareArguments& work);
  Result<> tell(const PrepareArguments& work);
  Result<> summarise(const PrepareArguments& work);
  void refuse(Rank src, const std::string& reason);

  std::map<Rank, PairPath> from_, to_;
  std::map<Rank, Peer> peers_;
  GpuSources gpu_sources_;
  bool uses_[3] = {false, false, false};  ///< by PairPath.
  std::string reason_;
};

}  // namespace reshard::direct
