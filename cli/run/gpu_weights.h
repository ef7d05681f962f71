// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "cli/run/rank_weights.h"
#include "reshard/cuda/device.h"
#include "reshard/exec/device/device_tensors.h"

namespace reshard::cli {

/// The weights of one rank on its GPU. Move-only.
struct GpuWeights {
  std::shared_ptr<const cuda::Device> device;
  std::optional<DeviceTensors> source, target, back;

  /// Copies of `host`, padding included, which no refit writes. Blocks. Errors: memory of the GPU
  /// is short; the driver's.
  static Result<GpuWeights> copy_of(const RankWeights& host,
                                    std::shared_ptr<const cuda::Device> device);
  /// Copies the target, both copies of it, to `host`, which it was made from. Blocks. Errors: the
  /// driver's.
  Result<> read_back(const RankWeights& host) const;
};

}  // namespace reshard::cli
