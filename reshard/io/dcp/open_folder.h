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
};

/// The files of a distributed checkpoint, mapped, and what they hold.
struct Folder {
  std::vector<MappedFile> files;
  TensorPieces content;
  std::vector<PlacedPiece> places;  ///< of content.pieces, in that order.
};

/// Opens the checkpoint whose `.metadata` this is. Reads what describes each item. Errors name the
/// path: those of parse_metadata() and read_torch_item(); an item that is not within its file or
/// that holds another shape or dtype than `.metadata` says.
Result<Folder> open_folder(const std::string& metadata_path);

}  // namespace reshard::dcp
