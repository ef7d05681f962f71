// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

/// A layout of values in which each rank holds, of the chosen tensors (by TensorId), all blocks
/// that its shards in `layout` overlap: a halo. Blocks are those of the canonical tensor; values
/// are stored as `layout.values` does. Ranks that hold equal blocks share a slot. Errors:
/// input_last()'s. @pre the tensors are among those that `layout` quantises
Result<std::shared_ptr<const ModelLayout>> whole_blocks(const QuantisedLayout& layout,
                                                        const std::vector<bool>& tensors);

/// The chosen tensors whole, each on one of the layout's ranks in turn. Errors and @pre: as
/// whole_blocks(); the layout has a rank.
Result<std::shared_ptr<const ModelLayout>> whole_tensors(const QuantisedLayout& layout,
                                                         const std::vector<bool>& tensors);

/// Bytes that ranks get of one tensor, all together, if its blocks are made whole by a plan.
struct WholeBlockBytes {
  Index halo = 0;     ///< to whole_blocks(), as values.
  Index between = 0;  ///< to whole_tensors(), as values, and from there to `layout`, quantised.
};
/// @pre as whole_blocks(). Cost: proportional to ranks times parts of the tensor.
WholeBlockBytes whole_block_bytes(const QuantisedLayout& layout, TensorId tensor);

}  // namespace reshard
