// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/exec/device/program_launches.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/planner.h"

namespace reshard {

struct DeviceRefitOptions {
  /// Thread blocks that run at a time; 0: as many as the GPU holds. Fewer leave multiprocessors to
  /// kernels that run meanwhile.
  int most_blocks = 0;
};

/// A refit between ranks whose memory is all on one GPU, such as a trainer and an engine that share
/// it: strided copies and casts, in one launch, whatever the number of tensors. Prepared once,
/// launched every step.
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
  Result<> launch(const cuda::Stream& stream) const { return launches_.launch_residents(stream); }

  std::size_t num_launches() const { return launches_.num_resident_launches(); }
  /// Delivered by each refit, and memory copies for that.
  Index bytes() const { return bytes_; }
  Index copies() const { return copies_; }

 private:
  DeviceRefit(device::ProgramLaunches launches, Index bytes, Index copies)
      : launches_(std::move(launches)), bytes_(bytes), copies_(copies) {}

  device::ProgramLaunches launches_;
  Index bytes_ = 0, copies_ = 0;
};

}  // namespace reshard
