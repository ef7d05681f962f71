// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "reshard/cuda/device.h"

namespace reshard::cuda {

/// Host memory of others that GPUs read and write at its host addresses, while this object lives.
/// The memory must stay until then. CUDA pins each byte once; ranges that overlap share what one of
/// them has pinned, as long as one of them lives. Move-only. Any thread.
class PinnedRange {
 public:
  /// Pins what is not pinned already. What others have pinned (torch, a framework) stays as it is,
  /// and must stay pinned. Errors: the driver's, such as for memory that cannot be pinned (mapped
  /// files), which leave nothing pinned; `unsupported` if this GPU has other addresses for host
  /// memory.
  static Result<PinnedRange> make(std::shared_ptr<const Device> device,
                                  std::span<std::byte> memory);

  PinnedRange() = default;
  PinnedRange(PinnedRange&& other) noexcept { *this = std::move(other); }
  PinnedRange& operator=(PinnedRange&& other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~PinnedRange();

 private:
  std::vector<std::uintptr_t> held_;  ///< where the registrations begin that it needs.
};

}  // namespace reshard::cuda
