// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "reshard/cuda/device.h"
#include "reshard/index/interval.h"

namespace reshard {

/// Memory of another process's GPU, or of another GPU of this process, that a GPU reads and writes
/// at `data()`, while this object or a copy of it lives. It must not be used once its owner has
/// freed it. Copyable.
class ImportedMemory {
 public:
  /// Opens what ExportedRange::key names. What this process has open already is not opened again.
  /// If its owner has put other memory behind the same addresses since then, that takes the place
  /// of the old: for mapped memory at the same address, for all who have it open; nobody may use it
  /// meanwhile. In the owner's own process it is the memory itself. Any thread. Errors: `corrupt`
  /// for a key that is none, or of more memory than there is; `unsupported`, with the reason, if
  /// this process or GPU cannot reach the memory; the driver's.
  static Result<ImportedMemory> open(const std::shared_ptr<const cuda::Device>& device,
                                     std::span<const std::byte> key);

  ImportedMemory() = default;
  std::byte* data() const { return data_; }
  Index size() const { return size_; }

 private:
  class Mapping;
  class Mappings;

  ImportedMemory(std::byte* data, Index size, std::shared_ptr<Mapping> mapping)
      : data_(data), size_(size), mapping_(std::move(mapping)) {}

  std::byte* data_ = nullptr;
  Index size_ = 0;
  std::shared_ptr<Mapping> mapping_;  ///< null in the owner's own process.
};

}  // namespace reshard
