// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/pinned_range.h"
#include "reshard/exec/prepare_arguments.h"

namespace reshard::device {

/// Above the size of any message: none is sent or received in place.
inline constexpr Index kNeverInPlace = Index{1} << 60;

/// Succeeds if a local tensor is in the memory of this GPU: kernels that use memory which the GPU
/// cannot reach would end the work of the whole process. `side`: "source" or "target". Errors: the
/// tensor, where it is, and where it should be.
Result<> expect_on(const cuda::Device& device, const std::byte* at, const char* side,
                   const ModelLayout& layout, Rank rank, SlotId slot);

/// The memory of a rank of which a GPU runs the program: what it has on the GPU, and host memory
/// that is pinned for it. Move-only.
class RankMemory {
 public:
  RankMemory() = default;
  /// Verifies where this rank's local tensors are. If one side is in a GPU's memory and the other
  /// in that of the host, it pins the latter. Errors: tensors that are elsewhere than their buffers
  /// say (named); sides on different GPUs; the driver's.
  static Result<RankMemory> of(const PrepareArguments& work);

  /// Null if all memory of the rank is the host's: threads run its program.
  const std::shared_ptr<const cuda::Device>& gpu() const { return gpu_; }
  /// Pins host memory, if there is a GPU. It must stay while this object lives.
  Result<> pin(std::span<std::byte> memory);

 private:
  Result<> add(const RankBuffers& side, const char* name, Rank me);

  std::shared_ptr<const cuda::Device> gpu_;
  std::vector<cuda::PinnedRange> pinned_;
};

}  // namespace reshard::device
