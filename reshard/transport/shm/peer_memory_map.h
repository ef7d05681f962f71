// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "reshard/transport/gpu_pointer_query.h"
#include "reshard/transport/messages/wire.h"
#include "reshard/transport/shm/peers.h"
#include "reshard/transport/transport.h"

namespace reshard::shm {

/// A rank's access to the memory of its peers: by mapping the files of their shared arenas, or
/// through the kernel (process_vm_readv).
class PeerMemoryMap {
 public:
  /// `peers` must outlive it. `gpu`, if any, tells memory that no host code can read.
  PeerMemoryMap(Peers& peers, Rank rank, std::unique_ptr<GpuPointerQuery> gpu)
      : all_(peers), rank_(rank), gpu_(std::move(gpu)), views_(peers.peers.size()) {}
  ~PeerMemoryMap() { close(); }
  PeerMemoryMap(const PeerMemoryMap&) = delete;
  PeerMemoryMap& operator=(const PeerMemoryMap&) = delete;

  /// The address by which `to` reads the memory; empty if it cannot.
  messages::WireAddress describe(Rank to, std::span<const std::byte> bytes);
  /// As Wire::pull.
  Result<> pull(Rank from, std::span<const std::byte> source, std::size_t offset,
                std::span<std::byte> into);
  /// As Transport::share, open, get. @pre for get: the pieces are inside their memory
  Result<RemoteKey> share(std::span<std::byte> memory);
  Result<RemoteMemory> open(Rank owner, const RemoteKey& key);
  Result<> get(std::span<const Get> pieces);
  /// Unmaps everything.
  void close();

 private:
  /// The mapped parts of a peer's arena.
  struct View {
    std::uint64_t size = 0;           ///< last known size of the file.
    std::vector<std::byte*> windows;  ///< by offset / kWindow; null if not mapped.
  };
  struct Opened {
    Rank owner;
    std::uint64_t address;
    std::uint64_t bytes;
  };
  struct Mapping {
    std::byte* base;
    std::size_t bytes;
  };

  Peer& peer(Rank rank) { return all_.peers[rank.index()]; }
  bool inside(Rank owner, std::uint64_t offset, std::uint64_t bytes);
  Result<> copy_mapped(Rank from, std::uint64_t offset, std::span<std::byte> into);
  Result<std::byte*> window(Rank from, std::size_t number);
  Result<> read_pieces(std::span<const Get> pieces);
  Result<std::byte*> map_whole(Rank owner, std::uint64_t offset, std::uint64_t bytes);

  Peers& all_;
  const Rank rank_;
  const std::unique_ptr<GpuPointerQuery> gpu_;  ///< null if no memory is on a GPU.
  std::vector<View> views_;
  std::vector<Opened> opened_;
  std::vector<Mapping> mappings_;
};

}  // namespace reshard::shm
