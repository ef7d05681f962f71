// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/model/model_layout.h"
#include "reshard/plan/balance.h"
#include "reshard/plan/replica_map.h"

namespace reshard {

/// Most ranks of a plan, both sides together: what a plan of all ranks costs grows with them, to
/// some seconds and some hundred MB for so many.
inline constexpr Index kMaxPlanRanks = Index{1} << 17;

/// What a caller may ask of a plan. All ranks must pass equal options.
struct PlanOptions {
  /// Canonical names that the destination may lack, or the source; every other one-sided tensor is
  /// an error.
  std::set<std::string> ignore;
  /// Canonical names of the tensors to move; empty: all. The others are left as they are and need
  /// no partner on the other side.
  std::set<std::string> only = {};
};

/// A box of one canonical tensor that goes from one rank to one rank; src == dst is a local copy.
struct Transfer {
  TensorId tensor;
  Rank src, dst;
  Box box;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// What one rank does in a refit. Sends are ordered by (dst, tensor, box), recvs by (src, tensor,
/// box): the bytes between two ranks are the same sequence on both sides.
struct RankPlan {
  Rank rank;
  std::vector<Transfer> sends;   ///< to other ranks.
  std::vector<Transfer> recvs;   ///< from other ranks.
  std::vector<Transfer> locals;  ///< from this rank to itself; never on the wire.
};

/// The plan of one refit: a pure function of two layouts of one model and the options.
///
/// Construction does what all ranks must agree on (who holds what, who sends how much of each
/// replicated piece); its cost grows with tensors and distinct pieces, not with ranks times
/// tensors. `part(r)` then makes one rank's operations alone. Immutable and safe to use from any
/// thread.
///
/// Laws (tests: plan_laws_test.cc):
///   1 exact cover   every destination element is in exactly one of the rank's recvs and locals
///   2 ownership     a sender holds what it sends; what a rank holds comes from itself
///   3 same plan     part(s).sends to d == part(d).recvs from s, on every machine
///   4 least bytes   no rank receives an element twice; the busiest sender is at the optimum for
///   the given replicas,
///                   within one row (a slice of the first dimension) per piece boundary
class Planner {
 public:
  /// @pre both layouts' models are equal (one ModelSpec, or equal digests)
  /// Errors: a name in options.only that the model lacks; a canonical tensor on one side only
  /// (named), unless the target omits it or the options ignore it; destination elements without a
  /// source (named, with box); more than kMaxPlanRanks.
  static Result<Planner> make(std::shared_ptr<const ModelLayout> source,
                              std::shared_ptr<const ModelLayout> target, PlanOptions options = {});

  const ModelLayout& source() const { return *source_; }
  const ModelLayout& target() const { return *target_; }
  const std::shared_ptr<const ModelLayout>& shared_source() const { return source_; }
  const std::shared_ptr<const ModelLayout>& shared_target() const { return target_; }

  /// True when the plan moves the tensor: it is asked for, both sides have it, it is not empty.
  bool moves(TensorId id) const { return pair_of_[id.index()].value() >= 0; }
  /// From how the source stores a tensor's values to how the target does.
  Conversion conversion(TensorId id) const { return {source_->form(id), target_->form(id)}; }
  /// The form in which values travel: the narrower of both, the target's where both are as wide.
  StoredForm wire_form(TensorId id) const;
  /// Bits of an element on the wire; all bytes of a plan are counted so.
  int element_bits(TensorId id) const { return bits(wire_form(id).dtype); }

  /// The operations of one rank; empty for a rank that is in neither layout.
  RankPlan rank_plan(Rank r) const;

  /// Calls f for each recv and local of a rank, ordered by tensor, without storing them.
  void for_each_delivery(Rank dst, const std::function<void(const Transfer&)>& f) const;

  /// How many transfers all ranks have together, at least: known without making them.
  Index min_transfers() const;

  /// Ranks of either layout.
  const RankSet& ranks() const { return ranks_; }
  /// The least load of the busiest sender for the given replicas, in bytes (see
  /// Balance::optimal_max).
  Index optimal_max_egress_bytes() const { return balance_.optimal_max; }

  /// Equal on all ranks if and only if they plan the same: compared before the first byte moves.
  std::uint64_t digest() const { return digest_; }

 private:
  /// The common part of a source cell and a destination cell.
  struct Piece {
    Box box;
    Index bytes = 0;
    SetId wanting;  ///< all destination ranks.
    std::int32_t supply = -1;
    SetId holders, remote;  ///< source ranks; destination ranks that are not among them.
  };
  /// All pieces of the tensors that have one source list, one destination list and one element
  /// size.
  using PairId = StrongInt<struct PairTag>;
  /// A destination's part of a supply's bytes: from `begin` to the next entry's.
  struct Demand {
    Rank rank;
    Index begin = 0;
  };
  struct SendContext;

  Planner() = default;
  Result<> pair_tensors(const PlanOptions& options);
  Result<std::vector<Piece>> intersect_cells(TensorId tensor, ReplicaMap::ListId from,
                                             ReplicaMap::ListId to);
  void find_demand();
  void make_digest(const PlanOptions& options);
  void add_sends(Rank r, std::vector<Transfer>& out) const;

  std::shared_ptr<const ModelLayout> source_, target_;
  RankSet ranks_;
  std::unique_ptr<RankSets> sets_;
  std::unique_ptr<ReplicaMap> from_, to_;
  std::vector<PairId> pair_of_;             ///< per tensor; -1 where nothing moves.
  std::vector<std::vector<Piece>> pieces_;  ///< per pair.
  std::vector<Index> tensors_of_pair_;      ///< per pair: how many tensors.
  std::vector<Supply> supplies_;
  std::vector<std::vector<Demand>> demand_;  ///< per supply, by rank ascending.
  Balance balance_;
  std::uint64_t digest_ = 0;
};

}  // namespace reshard
