// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard::dcp {

/// A tensor that torch.save wrote: an uncompressed zip archive with the tensor's storage as one
/// entry.
struct StoredItem {
  DType dtype = DType::f32;
  Dims shape;
  /// The dimensions from the outermost in memory: 0, 1, ... for row-major.
  Dims order;
  std::int64_t offset = 0, bytes = 0;  ///< of the elements in the archive.
};

/// Reads what describes the tensor; of its elements only the place is used. Errors do not name the
/// file: an archive that torch.save does not write (compressed, encrypted, without a tensor), a
/// pickle that wants another class, elements that are not dense in memory, or that the archive is
/// too short for.
Result<StoredItem> read_torch_item(std::span<const std::byte> archive);

}  // namespace reshard::dcp
