// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cli/run/run_refit.h"
#include "reshard/cuda/device.h"

namespace reshard::cli {

/// "cuda" or "cuda:3": the number of the GPU. Errors: it is another text.
Result<int> parse_gpu(const std::string& text);

/// The GPU of this number. Errors: there is no driver or no such GPU.
Result<std::shared_ptr<const cuda::Device>> open_gpu(int ordinal);

/// Copies `source` to the GPU, refits there `repeat` times, and copies the result to `target`.
/// Errors: memory of the GPU is short; those of the refit; an interrupt.
Result<RefitRuns> run_on_device(const Planner& planner, const RankBuffers& source,
                                const RankBuffers& target, Index repeat,
                                const std::shared_ptr<const cuda::Device>& device);

}  // namespace reshard::cli
