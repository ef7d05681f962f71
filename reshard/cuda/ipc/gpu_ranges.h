// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reshard/cuda/device.h"
#include "reshard/index/interval.h"

namespace reshard {

/// Memory of a GPU that was allocated, or mapped, as one.
struct GpuAllocation {
  std::byte* base = nullptr;
  Index bytes = 0;
  std::uint64_t id = 0;  ///< of the memory behind the addresses; never reused in the process.
};

/// Memory that other processes open as one: an allocation of cuMemAlloc(), or allocations of
/// virtual memory management (torch's expandable segments) that are mapped back to back.
struct GpuRange {
  std::vector<GpuAllocation> allocations;  ///< at least one.
  bool is_mapped = false;                  ///< virtual memory management.

  std::byte* base() const { return allocations.front().base; }
  std::byte* end() const { return allocations.back().base + allocations.back().bytes; }
  Index bytes() const { return end() - base(); }
  /// Digest of the allocations' ids and sizes.
  std::uint64_t id() const;
};

/// The ranges that have all bytes of these spans, ascending and disjoint. `spans`: ascending and
/// disjoint; parts of them between two tensors may have no memory. Errors: `unsupported` if the
/// driver is too old; the driver's.
Result<std::vector<GpuRange>> gpu_ranges(const cuda::Device& device,
                                         std::span<const std::span<std::byte>> spans);

/// The id of the memory that an address has now; 0 if it has none. One call of the driver. Errors:
/// as gpu_ranges().
Result<std::uint64_t> gpu_memory_id(const cuda::Device& device, const std::byte* at);

}  // namespace reshard
