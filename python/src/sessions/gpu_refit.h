// SPDX-License-Identifier: Apache-2.0
// What reshard.InProcessRefit does where all ranks' memory is on one GPU.
#pragma once

#include "python/src/plans/plan.h"
#include "python/src/tensors/buffers.h"
#include "reshard/exec/refit_options.h"
#include "reshard/refit/device_refit.h"

namespace reshard::python {

/// A prepared refit of a plan inside one GPU. Borrows the plan and the buffers, whose tensors must
/// not move. Needs the GIL.
class GpuRefit {
 public:
  /// Throws `unsupported` for sides that are not both on one GPU, and for a plan that quantises a
  /// part of the model; what DeviceRefit::prepare() fails with.
  GpuRefit(const Plan& plan, const TensorBuffers& source, const TensorBuffers& target);
  GpuRefit(const GpuRefit&) = delete;
  GpuRefit& operator=(const GpuRefit&) = delete;

  /// Gives the target's stream the refit, after the work that it and the source's stream have, and
  /// makes the source's stream wait for it. Returns at once: report.seconds are the host's.
  RefitReport launch();

 private:
  const TensorBuffers& source_;
  const TensorBuffers& target_;
  std::optional<DeviceRefit> refit_;
  StreamOrder order_;
};

}  // namespace reshard::python
