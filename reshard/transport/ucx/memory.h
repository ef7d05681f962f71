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

/// Memory of this rank that peers may write. Meant for few regions, each registered once.
class SharedMemory {
 public:
  struct Region {
    std::span<std::byte> memory;
    ucp_mem_h handle = nullptr;
    std::vector<std::byte> packed;  ///< for peers: the size, address and key of the region.
    std::vector<bool> sent_to;      ///< by rank: whether it has `packed`.
  };

  explicit SharedMemory(ucp_context_h context) : context_(context) {}
  /// Calls release().
  ~SharedMemory() { release(); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Registers memory of a type for `ranks` peers and returns its number. Errors: those of the
  /// library; `unsupported` if it does not register memory of a GPU.
  Result<std::uint32_t> add(std::span<std::byte> memory, ucs_memory_type_t type, int ranks);
  /// The number of the region that contains these bytes, or -1.
  std::int64_t find(std::span<const std::byte> bytes) const;
  Region& operator[](std::uint32_t number) { return regions_[number]; }
  /// Deregisters all regions. @pre no peer writes them any more
  void release();

 private:
  ucp_context_h context_;
  std::vector<Region> regions_;                         ///< by number.
  std::map<std::uintptr_t, std::uint32_t> by_address_;  ///< first byte to number.
};

/// The regions that one peer has shared with this rank.
class PeerRegions {
 public:
  struct RemoteAddress {
    std::uint64_t address;
    ucp_rkey_h key;
  };

  PeerRegions() = default;
  /// Calls release().
  ~PeerRegions() { release(); }
  PeerRegions(PeerRegions&& other) noexcept : regions_(std::exchange(other.regions_, {})) {}
  PeerRegions& operator=(PeerRegions&&) = delete;

  /// Adds a region from what SharedMemory::add() packed. Errors: `corrupt`; those of the library.
  Result<> add(ucp_ep_h endpoint, std::span<const std::byte> packed);
  /// The address of `bytes` bytes at an offset of a region. Errors: `corrupt` if they are outside
  /// it.
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
