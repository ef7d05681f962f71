// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/model/model_layout.h"
#include "reshard/plan/relays/relays.h"

namespace reshard {

/// The maximal number of ranks of a plan, both sides together. The cost of planning for all ranks
/// grows with them: some seconds and some hundred MB for this many.
inline constexpr Index kMaxPlanRanks = Index{1} << 17;

/// Options of a plan. All ranks must pass equal options.
struct PlanOptions {
  /// Canonical names of the model that one side may lack. Any other tensor on one side only is an
  /// error.
  std::set<std::string> ignore;
  /// Canonical names of the tensors to move; empty: all. Other tensors are left as they are and may
  /// lack a counterpart.
  std::set<std::string> only = {};
  /// Null: only sources send. Otherwise ranks of the target relay what they get to others that want
  /// it, if that gains enough; if it does not, the plan is the same as without.
  std::shared_ptr<const RelayOptions> relays = nullptr;
};

/// A box of one canonical tensor that one rank sends to another; src == dst is a local copy. After
/// hop 0, `src` sends what it has received, from its target.
struct Transfer {
  TensorId tensor;
  Rank src, dst;
  Box box;
  RelayHop relay = {};
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// The transfers of one rank. Sends are ordered by (dst, chain, tensor, box), recvs by (src, chain,
/// tensor, box), so both ranks of a pair see the bytes between them in the same order.
struct RankPlan {
  Rank rank;
  std::vector<Transfer> sends;   ///< to other ranks.
  std::vector<Transfer> recvs;   ///< from other ranks.
  std::vector<Transfer> locals;  ///< from this rank to itself, not over the wire.
};

/// The source rank of some bytes, their number, and their place on a chain of relays.
using DeliveredBytes = std::function<void(Rank src, Index bytes, const RelayHop& relay)>;

/// The plan of one refit: a pure function of two layouts of one model and the options.
///
/// Construction computes what all ranks must agree on: who holds what, and who sends how much of
/// each replicated piece. Its cost grows with tensors and distinct pieces, not with ranks times
/// tensors. `rank_plan(r)` then makes the transfers of one rank alone. Immutable; safe to use from
/// any thread.
///
/// Laws (tests: plan_laws_test.cc):
///   1 exact cover   each destination element is in exactly one of the rank's recvs and locals
///   2 ownership     a sender holds what it sends; a rank copies what it holds from itself
///   3 same plan     rank_plan(s).sends to d == rank_plan(d).recvs from s, on every machine
///   4 least bytes   no rank receives an element twice; the load of the busiest sender is optimal
///                   for the given replicas, within one row (a slice of the first dimension) per
///                   piece boundary
///   5 relays        a rank relays exactly boxes that it receives on the same chain, one hop
///   before;
///                   it gets no byte another way (tests: relays_test.cc)
class Planner {
 public:
  /// @pre both layouts have equal models (one ModelSpec, or equal digests)
  /// Errors: a name in the options that the model lacks (with the closest one); a canonical tensor
  /// on one side only (named), unless the target omits it or the options ignore it; destination
  /// elements without a source (named, with their box); more than kMaxPlanRanks ranks.
  static Result<Planner> make(std::shared_ptr<const ModelLayout> source,
                              std::shared_ptr<const ModelLayout> target, PlanOptions options = {});

  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;
  ~Planner();

  const ModelLayout& source() const { return *shared_source(); }
  const ModelLayout& target() const { return *shared_target(); }
  const std::shared_ptr<const ModelLayout>& shared_source() const;
  const std::shared_ptr<const ModelLayout>& shared_target() const;

  /// True if the plan moves the tensor: it is selected, not empty, and on both sides.
  bool moves(TensorId id) const;
  /// From the stored form of the source to that of the target.
  Conversion conversion(TensorId id) const { return {source().form(id), target().form(id)}; }
  /// The form of the values on the wire: the narrower of both sides; the target's if both have the
  /// same width.
  StoredForm wire_form(TensorId id) const;
  /// Bits of an element on the wire. All byte counts of a plan use this width.
  int element_bits(TensorId id) const { return bits(wire_form(id).dtype); }

  /// The transfers of one rank; empty for a rank in neither layout.
  RankPlan rank_plan(Rank r) const;

  /// Calls f for each recv and local copy of a rank, ordered by tensor, without storing them.
  void for_each_delivery(Rank dst, const std::function<void(const Transfer&)>& f) const;
  /// As for_each_delivery, but calls f with the source rank, the bytes on the wire and the hop
  /// alone, which is several times as fast.
  void for_each_delivered_bytes(Rank dst, const DeliveredBytes& f) const;

  /// A lower bound of the number of transfers of all ranks, known without making them.
  Index min_transfers() const;

  /// Ranks of either layout.
  const RankSet& ranks() const;
  /// The least possible load of the busiest sender for the given replicas, in bytes (see
  /// Balance::optimal_max).
  Index optimal_max_egress_bytes() const;
  /// The cost on network interfaces; none without PlanOptions::relays.
  const std::optional<RelaySummary>& relays() const;
  /// True if some rank of the target relays bytes.
  bool uses_relays() const { return relays() && relays()->used; }

  /// Equal on all ranks if and only if their plans are equal. Compared before the first byte moves.
  std::uint64_t digest() const;

 private:
  class State;
  explicit Planner(std::unique_ptr<const State> state);
  std::unique_ptr<const State> state_;
};

}  // namespace reshard
