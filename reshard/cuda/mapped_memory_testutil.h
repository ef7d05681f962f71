// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU as torch's expandable segments and vLLM's sleep mode have it: addresses that
// stay, memory that comes and goes.
#pragma once

#include <memory>
#include <vector>

#include "reshard/cuda/device.h"
#include "reshard/cuda/driver.h"
#include "reshard/index/interval.h"

namespace reshard::cuda {

class MappedMemory {
 public:
  static constexpr Index kChunkBytes = Index{2} << 20;

  /// Maps chunks for `bytes`, which can be exported as `handle_types` (of HandleType).
  MappedMemory(std::shared_ptr<const Device> device, Index bytes, int handle_types = kFileHandle);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at_)); }
  Index size() const { return num_chunks_ * kChunkBytes; }
  /// Unmaps all memory, or maps other memory to the same addresses.
  void sleep();
  void wake();
  /// Other memory for one chunk.
  void replace(Index chunk);

 private:
  void map(Index chunk);
  void unmap(Index chunk);
  /// Ends the program on an error.
  void must(int status) const;

  std::shared_ptr<const Device> device_;
  const int handle_types_;
  Index num_chunks_ = 0;
  DevicePtr at_ = 0;
  bool is_awake_ = false;
};

}  // namespace reshard::cuda
