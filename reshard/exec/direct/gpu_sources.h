// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "reshard/cuda/ipc/exported_memory.h"
#include "reshard/cuda/ipc/imported_memory.h"
#include "reshard/exec/direct/memory_table.h"

namespace reshard::direct {

/// An identifier of this host; memory of its GPUs is reached only within it. Never 0.
std::uint64_t gpu_host();

/// The sources of this rank in the memory of a GPU, as others open them.
class GpuSources {
 public:
  /// The table of all sources that this rank sends from. The spans of memory that is what it was in
  /// the last call have no key: peers have it open. Memory that cannot be shared: a table with a
  /// reason. Errors: a tensor without memory (named).
  Result<MemoryTable> share(const PrepareArguments& work);
  /// The files of the last share(), once peers have opened its keys.
  void close_files() { files_.clear(); }

 private:
  struct Known {
    std::byte* base = nullptr;
    Index bytes = 0;
    std::uint64_t id = 0;
    friend bool operator==(const Known&, const Known&) = default;
  };
  Result<MemoryTable> export_ranges(const cuda::Device& device,
                                    const std::vector<GpuRange>& ranges);

  std::vector<Known> known_;  ///< by span of the last table; empty if it had a reason.
  std::vector<FileDescriptor> files_;
};

/// Memory that a peer shared, by span of its table.
class GpuPeer {
 public:
  /// Opens the spans that have keys. "", or why this rank cannot. Errors: `corrupt`, which names
  /// the rank.
  Result<std::string> open(const std::shared_ptr<const cuda::Device>& gpu, Rank owner,
                           const MemoryTable& table);
  /// The opened memory, indexed by span.
  std::vector<RemoteMemory> memory(Rank owner) const;

 private:
  std::vector<ImportedMemory> memory_;
};

}  // namespace reshard::direct
