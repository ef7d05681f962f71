// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/index/box.h"
#include "reshard/io/checkpoint/stored_tensor.h"

namespace reshard {

/// A box of a tensor that a checkpoint stores by itself.
struct TensorPiece {
  std::string local;       ///< the name of the local tensor that holds it.
  std::size_t tensor = 0;  ///< of TensorPieces::tensors.
  Box box;
  Dims order;  ///< the dimensions from the outermost in memory: 0, 1, ... for row-major.
};

/// The kind of an entry of a checkpoint that is no tensor of the model.
enum class EntryKind : std::uint8_t {
  tensor,         ///< a tensor that is none of the following.
  object,         ///< a pickled object of the trainer's.
  trainer_state,  ///< a tensor that is known to be no weight: the optimizer's, a gradient.
  copy,           ///< a tensor whose bytes are also there under the name that is used.
  unread,         ///< a tensor of a dtype or a number of dimensions that reshard does not have.
};

/// An entry of a checkpoint that is no tensor of the model.
struct CheckpointEntry {
  std::string name;
  EntryKind kind = EntryKind::object;
  std::string why = {};  ///< why it is not read, if it is EntryKind::unread.
  /// The location of the pickle of an object, in Checkpoint::mapping(file).
  std::size_t file = 0;
  std::int64_t offset = 0, bytes = 0;
};

/// The tensors of a checkpoint that stores them in pieces, as trainers hold them.
struct TensorPieces {
  std::vector<TensorSpec> tensors;
  std::vector<TensorPiece> pieces;
  std::vector<CheckpointEntry> others;
};

}  // namespace reshard
