// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/convert/inspect/tensor_kinds.h"
#include "reshard/convert/slot_files.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// How a layout stores tensors of one kind: those that become the same part of local tensors of one
/// pattern.
struct KindInLayout {
  std::string pattern;  ///< of the canonical names, as in TensorKind.
  std::string local;    ///< pattern of the local tensors' names; empty: no rank holds them.
  std::string how;      ///< "dim 0 over tp=4; in 8 pieces; beside 2 others; padded; as F32;
                        ///< negated_exp; by rule 7"
  Dims shape;           ///< of a local tensor in memory, on the first rank that has it.
  Index count = 0;      ///< tensors.
  Index ranks = 0;      ///< that hold a part of the first of them.
};

/// In the order of the model's tensors. Cost: proportional to the tensors and their places.
std::vector<KindInLayout> explain_layout(const ModelLayout& layout, const SlotFiles& files);

/// The smallest and the largest of the ranks' local bytes; 0 for a layout without ranks.
struct RankBytes {
  Index least = 0, most = 0;
};
RankBytes bytes_per_rank(const ModelLayout& layout);

}  // namespace reshard
