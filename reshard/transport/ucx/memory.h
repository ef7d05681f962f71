// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/transport/messages/wire.h"

namespace reshard::ucx {

/// Memory of this rank that peers may write to. Few regions, each registered once.
class SharedMemory {
 public:
  struct Region {
    std::span<std::byte> memory;
    ucp_mem_h handle = nullptr;
    std::vector<std::byte> packed;  ///< what a peer needs: the region's size, address and key.
    std::vector<bool> sent_to;      ///< by rank: has `packed`.
  };

  explicit SharedMemory(ucp_context_h context) : context_(context) {}
  /// As release().
  ~SharedMemory() { release(); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Registers memory for `ranks` peers; its number. Errors: what the library says.
  Result<std::uint32_t> add(std::span<std::byte> memory, int ranks);
  /// The number of the region that has all these bytes, or -1.
  std::int64_t find(std::span<const std::byte> bytes) const;
  Region& operator[](std::uint32_t number) { return regions_[number]; }
  /// Ends all registrations. @pre no peer writes any more
  void release();

 private:
  ucp_context_h context_;
  std::vector<Region> regions_;                         ///< by number.
  std::map<std::uintptr_t, std::uint32_t> by_address_;  ///< begin to number.
};

/// Memory of one peer, as its packets tell of it.
class PeerRegions {
 public:
  struct RemoteAddress {
    std::uint64_t address;
    ucp_rkey_h key;
  };

  PeerRegions() = default;
  /// As release().
  ~PeerRegions() { release(); }
  PeerRegions(PeerRegions&& other) noexcept : regions_(std::exchange(other.regions_, {})) {}
  PeerRegions& operator=(PeerRegions&&) = delete;

  /// Takes a region's number and what add() packed there. Errors: `corrupt`; what the library says.
  Result<> add(ucp_ep_h endpoint, std::span<const std::byte> packed);
  /// Where `bytes` bytes at an offset of a region are. Errors: `corrupt` when they are not in it.
  Result<RemoteAddress> find(std::uint32_t number, std::uint64_t offset, std::size_t bytes) const;
  void release();

 private:
  struct Region {
    std::uint64_t size = 0;
    std::uint64_t address = 0;
    ucp_rkey_h key = nullptr;
  };
  std::map<std::uint32_t, Region> regions_;
};

}  // namespace reshard::ucx
