// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "reshard/model/model_layout.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {

/// A rank set of a plan, as a position in a RankSets table.
using SetId = StrongInt<struct SetIdTag>;

/// Distinct rank sets. Ids are assigned in the order of first use, so they are deterministic.
class RankSets {
 public:
  SetId intern(const RankSet& ranks);
  const RankSet& operator[](SetId id) const { return sets_[id.index()]; }
  Index size() const { return static_cast<Index>(sets_.size()); }

 private:
  std::vector<RankSet> sets_;
  std::unordered_map<std::uint64_t, std::vector<SetId>> by_hash_;
};

/// A box of a canonical tensor and all ranks that hold every element of it.
struct Cell {
  Box box;
  SetId ranks;
};

/// A box and the ranks that hold it.
struct Replica {
  Box box;
  RankSet ranks;
};

/// Cuts overlapping boxes into disjoint ones, sorted by `before`; each point keeps exactly the
/// ranks of the input boxes that contain it. @pre all boxes have one rank and none is empty
std::vector<Cell> disjoint_cells(std::vector<Replica> replicas, RankSets& sets);

/// The replicas of every canonical tensor of a layout, as cells. Tensors with the same replicas
/// share a list, so the cost is one look-up per tensor and one expansion per distinct list.
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
