// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/io/checkpoint/checkpoint.h"

namespace reshard::identify {

/// A box of a tensor as it is stored.
struct StoredPiece {
  Box box;
  Dims order;  ///< of its dimensions in memory, as TensorPiece::order.
  const CheckpointTensor* tensor = nullptr;
};

/// The pieces of a tensor by where they lie in it; one if it is stored whole, none if it is not
/// stored. The result points into the checkpoint. @pre its kind is not Kind::ranks
std::vector<StoredPiece> stored_as(const Checkpoint& checkpoint, const std::string& name);

/// True if two stored tensors have the same dtype and shape, and the same bytes, however each is
/// cut into pieces. Reads both. @pre both are stored; the checkpoint's kind is not Kind::ranks
bool same_content(const Checkpoint& checkpoint, const std::string& a, const std::string& b);

/// True if a stored tensor is, as same_content() says, the box of its shape at `at` in another.
bool same_as_part(const Checkpoint& checkpoint, const std::string& part, const std::string& whole,
                  const Dims& at);

}  // namespace reshard::identify
