// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "reshard/cuda/memory.h"
#include "reshard/cuda/stream.h"

namespace reshard::cuda {

/// Tables one after another, each as aligned as its entries need, to be copied to a GPU at once.
class PackedTables {
 public:
  /// Returns the offset of the table in bytes.
  template <class T>
  Index add(std::span<const T> table) {
    const auto aligned = (bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_.resize(aligned + table.size_bytes());
    if (!table.empty()) std::memcpy(bytes_.data() + aligned, table.data(), table.size_bytes());
    return static_cast<Index>(aligned);
  }
  /// A copy of all in a GPU's memory. Blocks. Errors: the driver's; memory that is short.
  Result<Buffer> copy_to(const std::shared_ptr<const Device>& device) const {
    const auto bytes = static_cast<Index>(bytes_.size());
    Buffer out = RESHARD_TRY(Buffer::on_device(device, bytes));
    const Stream stream = RESHARD_TRY(Stream::make(device));
    RESHARD_TRY(stream.copy(out.data(), bytes_.data(), bytes));
    RESHARD_TRY(stream.synchronize());
    return out;
  }

 private:
  std::vector<std::byte> bytes_;
};

/// The table at an offset of a copy.
template <class T>
const T* table_at(const Buffer& copy, Index offset) {
  return reinterpret_cast<const T*>(copy.data() + offset);
}

}  // namespace reshard::cuda
