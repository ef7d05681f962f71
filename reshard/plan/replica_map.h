// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reshard/model/model_layout.h"
#include "reshard/plan/rank_sets.h"

namespace reshard {

/// A box of a canonical tensor and all ranks that hold every element of it.
struct Cell {
  Box box;
  SetId ranks;
};

/// Cuts overlapping boxes so that the results are disjoint, sorted by `before`, and each point
/// keeps exactly the ranks of the input boxes it lies in. @pre all boxes have one rank and none is
/// empty
std::vector<Cell> disjoint_cells(std::vector<std::pair<Box, RankSet>> held, RankSets& sets);

/// Who holds what of every canonical tensor of a layout, in cells. Tensors that are held alike
/// share one list, so that the cost is one look-up per tensor plus one expansion per distinct list.
class ReplicaMap {
 public:
  using ListId = StrongInt<struct CellListTag>;

  ReplicaMap(const ModelLayout& layout, RankSets& sets);

  /// An empty list if no rank holds the tensor.
  ListId list(TensorId id) const { return lists_[id.index()]; }
  std::span<const Cell> cells(ListId id) const { return cells_[id.index()]; }
  Index num_lists() const { return static_cast<Index>(cells_.size()); }

 private:
  std::vector<ListId> lists_;
  std::vector<std::vector<Cell>> cells_;
};

}  // namespace reshard
