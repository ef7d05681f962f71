// SPDX-License-Identifier: Apache-2.0
// Terms. A piece is the intersection of a source cell and a destination cell. A supply is a set of
// source ranks (the holders) with all bytes that only they hold and other ranks want. The bytes of
// a supply are on one line: destination ranks ascending, and the pieces of each rank in the order
// (tensor, piece). The balance cuts the line into one share per holder. A holder sends to a
// destination what lies in both the holder's share and the destination's part of the line, so any
// rank finds its own transfers from two cuts of one line.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reshard/plan/balance.h"
#include "reshard/plan/demand_line.h"
#include "reshard/plan/planner.h"
#include "reshard/plan/relays/relays.h"
#include "reshard/plan/replica_map.h"

namespace reshard {

/// The immutable content of a planner.
class Planner::State {
 public:
  static Result<std::unique_ptr<const State>> make(std::shared_ptr<const ModelLayout> source,
                                                   std::shared_ptr<const ModelLayout> target,
                                                   const PlanOptions& options);

  const std::shared_ptr<const ModelLayout>& source() const { return source_; }
  const std::shared_ptr<const ModelLayout>& target() const { return target_; }
  const RankSet& ranks() const { return ranks_; }
  bool moves(TensorId id) const { return pair_of_[id.index()].value() >= 0; }
  StoredForm wire_form(TensorId id) const;
  int element_bits(TensorId id) const { return bits(wire_form(id).dtype); }
  Index optimal_max() const { return balance_.optimal_max; }
  Index min_transfers() const;
  const std::optional<RelaySummary>& relays() const { return relay_summary_; }
  std::uint64_t digest() const { return digest_; }

  void for_each_delivery(Rank dst, const std::function<void(const Transfer&)>& f) const;
  void for_each_delivered_bytes(Rank dst, const DeliveredBytes& f) const;
  RankPlan rank_plan(Rank r) const;

 private:
  /// The intersection of a source cell and a destination cell.
  struct Piece {
    Box box;
    Index bytes = 0;
    SetId wanting;  ///< all destination ranks.
    std::int32_t supply = -1;
    SetId holders, remote;   ///< source ranks; destination ranks that do not hold the piece.
    SetId demand;            ///< as on the line of the supply: ranks of `remote`, and a tree.
    std::int32_t tree = -1;  ///< of the ranks of `remote` that are not in `demand`; -1: none.
  };
  /// Identifies the pieces of all tensors with the same source list, destination list and element
  /// size.
  using PairId = StrongInt<struct PairTag>;
  struct SendContext;
  struct Delivery;
  struct Line;
  struct Wanted;

  Result<> pair_tensors(const PlanOptions& options);
  Result<std::vector<Piece>> intersect_cells(TensorId tensor, ReplicaMap::ListId from,
                                             ReplicaMap::ListId to);
  void find_demand();
  void make_digest(const PlanOptions& options);
  std::vector<std::vector<Wanted>> wanted_by(Rank dst, std::vector<Line>& lines) const;
  /// Calls f(delivery) for each delivery to `dst`.
  template <class F>
  void visit_deliveries(Rank dst, F&& f) const;
  void add_sends(Rank r, std::vector<Transfer>& out) const;

  // relayed_plan.cc
  void add_relays(const RelayOptions& options);
  void plant_trees(const RankPlaces& places);
  bool number_chains();
  Index busiest_nic(const RankPlaces& places) const;
  Index least_nic(const RankPlaces& places) const;
  /// The place of a tree on the lines of supplies: after all ranks.
  Rank on_line(std::int32_t tree) const { return Rank(first_tree_ + static_cast<Rank::rep>(tree)); }
  bool is_tree(Rank on_line) const { return on_line.value() >= first_tree_; }
  const RelayTree& tree_of(Rank on_line) const {
    return trees_[static_cast<std::size_t>(on_line.value() - first_tree_)];
  }
  /// @pre the supply has bytes for the tree, from this share
  Index chain_of(std::size_t supply, Rank tree, Rank holder, int stripe) const;

  std::shared_ptr<const ModelLayout> source_, target_;
  RankSet ranks_;
  std::unique_ptr<RankSets> sets_;
  std::unique_ptr<ReplicaMap> from_, to_;
  std::vector<PairId> pair_of_;             ///< per tensor; -1 if it does not move.
  std::vector<std::vector<Piece>> pieces_;  ///< per pair.
  std::vector<Index> tensors_of_pair_;      ///< per pair: number of tensors.
  std::vector<Supply> supplies_;
  std::vector<DemandLine> demand_;  ///< per supply.
  Balance balance_;
  Rank::rep first_tree_ = 0;      ///< above all ranks.
  std::vector<RelayTree> trees_;  ///< empty: only sources send.
  /// The first chain of each supply and tree on its line.
  std::map<std::pair<std::size_t, Rank>, Index> chains_;
  std::vector<bool> relayable_;  ///< per pair: ranks store what travels, bit for bit.
  std::optional<RelaySummary> relay_summary_;
  std::uint64_t digest_ = 0;
};

}  // namespace reshard
