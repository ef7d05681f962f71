// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/cuda/tile_runner.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/planner.h"

namespace reshard {

struct DeviceRefitOptions {
  /// Thread blocks that run at a time; 0: as many as the GPU holds. Fewer leave multiprocessors to
  /// kernels that run meanwhile.
  int most_blocks = 0;
};

/// A refit between ranks whose memory is all on one GPU, such as a trainer and an engine that share
/// it: strided copies and casts, in as many launches as copies depend on each other (one, for a
/// plan), whatever the number of tensors. Prepared once, launched every step.
class DeviceRefit {
 public:
  /// Resolves the deliveries to all destination ranks to addresses, and keeps them on the GPU. The
  /// memory behind the buffers must not move while this object lives. Blocks until the tables are
  /// on the GPU. Errors: the buffers lack a tensor of the plan, or it is not in the memory of this
  /// GPU (named); `unsupported` if this build has no kernels for it; memory that is short; the
  /// driver's.
  static Result<DeviceRefit> prepare(const Planner& planner, const RankBuffers& source,
                                     const RankBuffers& target,
                                     std::shared_ptr<const cuda::Device> device,
                                     DeviceRefitOptions options = {});

  /// Gives a stream of this GPU the whole refit, after the work that the stream has. Neither waits
  /// nor allocates, so a CUDA graph can capture it. The object must stay until the stream has run
  /// it. Errors: the driver's.
  Result<> launch(const cuda::Stream& stream) const { return runner_.launch(stream); }

  std::size_t num_launches() const { return runner_.num_launches(); }
  /// Delivered by each refit, and memory copies for that.
  Index bytes() const { return bytes_; }
  Index copies() const { return copies_; }

 private:
  DeviceRefit(cuda::TileRunner runner, Index bytes, Index copies)
      : runner_(std::move(runner)), bytes_(bytes), copies_(copies) {}

  cuda::TileRunner runner_;
  Index bytes_ = 0, copies_ = 0;
};

}  // namespace reshard
