// SPDX-License-Identifier: Apache-2.0
// The GPU that tests use: the real one whose number RESHARD_TEST_GPU gives, or the emulated one.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reshard/cuda/device.h"

namespace reshard::cuda {

/// True unless RESHARD_TEST_GPU is set. Counts and faults are the emulated GPU's only.
bool is_emulated();
std::shared_ptr<const Device> gpu_under_test();

/// Copies between host memory and the GPU's, and waits for that.
void write_to_gpu(const std::shared_ptr<const Device>& gpu, std::byte* at,
                  std::span<const std::byte> bytes);
std::vector<std::byte> read_from_gpu(const std::shared_ptr<const Device>& gpu, const std::byte* at,
                                     std::size_t bytes);

}  // namespace reshard::cuda
