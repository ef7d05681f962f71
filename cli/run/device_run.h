// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>

#include "cli/run/run_refit.h"
#include "reshard/cuda/device.h"
#include "reshard/refit/session_side.h"

namespace reshard::cli {

/// "cuda:3": the number of the GPU; "cuda": RunArguments::kAnyGpu. Errors: it is another text.
Result<int> parse_gpu(const std::string& text);

/// The GPU of this number, or of `rank` if any will do. Errors: there is no driver or no such GPU.
Result<std::shared_ptr<const cuda::Device>> open_gpu(int ordinal, int rank = 0);

struct DeviceRunOptions {
  std::set<std::string> ignore = {};  ///< tensors that one side may lack.
  std::set<std::string> only = {};    ///< the tensors to move; empty: all.
  Index repeat = 1;                   ///< refits.
  /// Compares fingerprints of both sides, computed on the GPU, after each refit.
  bool check_fingerprints = false;
};

/// Copies `source` to the GPU, refits there, and copies the result to `target`; both have host
/// memory of all their ranks. Errors: memory of the GPU is short; those of the refit; `corrupt` if
/// fingerprints differ; an interrupt. @pre neither side is quantised, if fingerprints are checked
Result<RefitRuns> run_on_device(const SessionSide& source, const SessionSide& target,
                                const DeviceRunOptions& options,
                                const std::shared_ptr<const cuda::Device>& device);

}  // namespace reshard::cli
