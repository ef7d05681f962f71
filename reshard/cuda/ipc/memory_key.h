// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reshard/cuda/driver.h"
#include "reshard/index/interval.h"

namespace reshard::ipc {

/// The description of a shared GpuRange that its process sends to others.
struct MemoryKey {
  struct Chunk {
    Index bytes = 0;
    std::int32_t file = -1;  ///< of the owner: exported memory; -1: none.
    std::optional<cuda::IpcHandle> handle = std::nullopt;  ///< CUipcMemHandle or CUmemFabricHandle.
  };
  std::uint64_t process = 0;  ///< process_token() of the owner.
  std::uint64_t pid_namespace = 0;
  std::int32_t pid = 0;
  std::int32_t device = 0;  ///< ordinal of the GPU, in the owner.
  std::uint64_t base = 0;   ///< address in the owner.
  std::uint64_t id = 0;     ///< GpuRange::id().
  bool is_mapped = false;   ///< virtual memory management; else one chunk, with a handle.
  std::vector<Chunk> chunks = {};

  /// At most 2^60.
  Index bytes() const;
};

std::vector<std::byte> encode(const MemoryKey& key);
/// Errors: `corrupt` for bytes that encode() cannot have written.
Result<MemoryKey> decode_memory_key(std::span<const std::byte> bytes);

}  // namespace reshard::ipc
