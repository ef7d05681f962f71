// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reshard/cuda/device.h"
#include "reshard/refit/session_side.h"

namespace reshard::session {

/// The memory of a GPU behind this rank's local tensors of one side, whose addresses stay: an
/// allocator may unmap it and map other memory there (vLLM's sleep mode, torch's expandable
/// segments), or free it and allocate it again.
class GpuMemoryWatch {
 public:
  GpuMemoryWatch() = default;
  /// Finds the allocations; none if the side is in host memory, or if the driver cannot tell. Local
  /// tensors without memory are not looked at. `side`: "source" or "target", for texts. Borrows the
  /// buffers' GPU.
  static GpuMemoryWatch of(std::string side, const SessionSide& memory, Rank me);

  struct State {
    std::uint64_t id = 0;      ///< digest of what is behind the addresses; 0: no GPU.
    std::string trouble = {};  ///< the first tensor without memory, and what to do; "" if none.
  };
  /// As it is now: one call of the driver for each allocation. Allocates nothing unless there is
  /// trouble.
  State look() const;

 private:
  struct Watched {
    const std::byte* at = nullptr;
    SlotId first;  ///< a local tensor in it.
  };
  void add(const RankBuffers& buffers, Rank me);

  std::string side_;
  std::shared_ptr<const cuda::Device> device_;
  std::shared_ptr<const ModelLayout> layout_;
  std::vector<Watched> watched_;
};

}  // namespace reshard::session
