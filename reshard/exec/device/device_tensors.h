// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"
#include "reshard/exec/rank_buffers.h"

namespace reshard {

/// The local tensors of ranks in the memory of one GPU, which this object owns. Move-only.
class DeviceTensors {
 public:
  /// One buffer per rank, not initialised. Errors: memory of the GPU is short (says how many bytes
  /// were needed).
  static Result<DeviceTensors> allocate(const std::shared_ptr<const ModelLayout>& layout,
                                        std::span<const Rank> ranks,
                                        const std::shared_ptr<const cuda::Device>& device);

  /// Their addresses, which host code must not read or write.
  const RankBuffers& buffers() const { return buffers_; }

  /// Gives the stream copies from (to) `host`, of the same layout, for all ranks here. Its memory
  /// must stay until they are done. Errors: `host` lacks a tensor (named); the driver's.
  Result<> copy_from(const RankBuffers& host, const cuda::Stream& stream) const;
  Result<> copy_to(const RankBuffers& host, const cuda::Stream& stream) const;

 private:
  explicit DeviceTensors(RankBuffers buffers) : buffers_(std::move(buffers)) {}

  RankBuffers buffers_;
  std::vector<cuda::Buffer> memory_;
};

}  // namespace reshard
