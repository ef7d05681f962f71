// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/base/file.h"
#include "reshard/cuda/ipc/gpu_ranges.h"

namespace reshard {

/// The key and files with which other processes of this host open a GpuRange. The memory must stay
/// until the last of them has closed it.
struct ExportedRange {
  std::vector<std::byte> key;         ///< for open_gpu_memory(); at most kMaxGpuMemoryKey bytes.
  std::vector<FileDescriptor> files;  ///< must stay open until peers have opened the key.
};

inline constexpr std::size_t kMaxGpuMemoryKey = std::size_t{1} << 20;

/// Exports a range of this GPU, or of another: with an IPC handle; mapped memory as files, and as
/// fabric handles if its owner asked for these, too. Errors: `unsupported`, with the reason, if
/// this memory cannot be shared: it was created without a type of handle, it is of a memory pool,
/// or the driver refuses it.
Result<ExportedRange> export_gpu_memory(const cuda::Device& device, const GpuRange& range);

/// Why processes of this host cannot share the memory of its GPUs: there is no GPU, or its driver
/// is too old; "" if they can, as far as is known before memory is shared.
std::string gpu_sharing_unavailable();

}  // namespace reshard
