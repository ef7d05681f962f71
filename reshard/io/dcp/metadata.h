// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"

/// The `.metadata` file of torch.distributed.checkpoint: which tensors there are, in which chunks,
/// and in which file each chunk is.
namespace reshard::dcp {

inline constexpr std::string_view kMetadataFile = ".metadata";

/// The bytes of one entry: a stream that torch.save wrote, within a file of the folder.
struct Item {
  std::string file;
  std::int64_t offset = 0, bytes = 0;
  friend bool operator==(const Item&, const Item&) = default;
};

/// A box of a tensor.
struct Chunk {
  Dims offsets, sizes;
  Item item;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

struct Tensor {
  std::string name;
  DType dtype = DType::f32;
  Dims shape;
  std::vector<Chunk> chunks;  ///< each lies in the shape.
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

/// An entry that is not read as a tensor: an object of the trainer's, such as a step, or a tensor
/// of a dtype or a number of dimensions that reshard does not have.
struct Other {
  std::string name;
  std::string why;  ///< why a tensor is not read; empty for an object.
  Item item;        ///< where an object is.
  friend bool operator==(const Other&, const Other&) = default;
};

struct Metadata {
  std::vector<Tensor> tensors;  ///< in the order of the file.
  std::vector<Other> others;
  friend bool operator==(const Metadata&, const Metadata&) = default;
};

/// The largest `.metadata` file. Bytes.
inline constexpr std::int64_t kMaxMetadataBytes = std::int64_t{1} << 30;

/// Reads a `.metadata` file; runs nothing of it. Errors do not name the file: those of unpickle();
/// an object whose attributes are not those of its class; a chunk outside its tensor or without its
/// place in a file; a file name outside the folder; compressed items.
Result<Metadata> parse_metadata(std::span<const std::byte> bytes);

/// The bytes of such a file. The same metadata gives the same bytes.
/// @pre every name is UTF-8
std::string metadata_bytes(const Metadata& metadata);

}  // namespace reshard::dcp
