// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/io/checkpoint/pieces.h"
#include "reshard/io/files/mapped_file.h"

namespace reshard::dcp {

/// A stored piece: a contiguous tensor in one of the files.
struct PlacedPiece : StoredTensor {
  std::size_t file = 0;
  Dims order;  ///< as TensorPiece::order; `shape` is in this order.
};

/// The files of a distributed checkpoint, mapped, and what they hold.
struct Folder {
  std::vector<MappedFile> files;
  TensorPieces content;
  std::vector<PlacedPiece> places;  ///< of content.pieces, in that order.
};

/// "layers.0.weight", or "layers.0.weight[4:8,0:16]" for one piece of several.
std::string piece_name(const TensorSpec& tensor, const Box& box);

/// Opens the checkpoint whose `.metadata` this is. Reads what describes each item. Errors name the
/// path: those of parse_metadata() and read_torch_item(); an item that is not within its file or
/// that holds another shape or dtype than `.metadata` says.
Result<Folder> open_folder(const std::string& metadata_path);

}  // namespace reshard::dcp
