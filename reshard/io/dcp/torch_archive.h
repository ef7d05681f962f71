// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reshard/io/checkpoint/safetensors.h"

namespace reshard::dcp {

/// The archive of one contiguous tensor, as torch.load reads it: `head`, the tensor's bytes, and a
/// tail with their checksum.
struct TorchArchive {
  std::string pickle;             ///< what describes the tensor.
  std::string head;               ///< its size is a multiple of 64.
  std::int64_t tensor_bytes = 0;  ///< of the tensor.
  std::int64_t tail_bytes = 0;

  std::int64_t bytes() const {
    return static_cast<std::int64_t>(head.size()) + tensor_bytes + tail_bytes;
  }
};

/// @pre torch has the dtype, and stored_bytes() accepts the shape
TorchArchive torch_archive(DType dtype, const Dims& shape);

/// The end of an archive whose tensor has the CRC-32 `crc`. @post its size is archive.tail_bytes
std::string torch_archive_tail(const TorchArchive& archive, std::uint32_t crc);

/// The archive of an object without tensors, which this pickle makes.
std::string object_archive(std::string_view pickle);

}  // namespace reshard::dcp
