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

/// An entry that is no tensor that can be held here: an object of the trainer's, such as a step, or
/// a tensor of another dtype or of more dimensions.
struct Other {
  std::string name;
  std::string why;  ///< empty for an object.
  Item item;        ///< of an object.
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
/// what is not of its class's form; a chunk outside its tensor or without its place in a file; a
/// file name outside the folder; compressed items.
Result<Metadata> parse_metadata(std::span<const std::byte> bytes);

/// The bytes of such a file. The same metadata gives the same bytes.
/// @pre every name is UTF-8
std::string metadata_bytes(const Metadata& metadata);

}  // namespace reshard::dcp
