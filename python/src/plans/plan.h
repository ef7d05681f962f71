// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python/src/layout.h"
#include "reshard/convert/layout_pair.h"

namespace reshard::python {

/// Bytes from rank to rank, row-major [source rank][destination rank]; the diagonal is local.
struct Traffic {
  Index ranks = 0;
  std::vector<Index> bytes;
};

/// reshard.Plan: the plan between two layouts. Immutable; its totals are computed on first use.
class Plan {
 public:
  Plan(std::shared_ptr<const Layout> source, std::shared_ptr<const Layout> target, LayoutPair pair,
       std::set<std::string> only)
      : source_(std::move(source)),
        target_(std::move(target)),
        pair_(std::move(pair)),
        only_(std::move(only)) {}

  const std::shared_ptr<const Layout>& source() const { return source_; }
  const std::shared_ptr<const Layout>& target() const { return target_; }
  const LayoutPair& pair() const { return pair_; }
  /// Canonical names of the tensors to move; empty: all.
  const std::set<std::string>& only() const { return only_; }
  const Planner& planner() const { return *pair_.planner; }
  /// Thread-safe, as is traffic(). Needs no GIL.
  const PlanSummary& summary() const;
  /// Throws UnsupportedError above kMaxTrafficRanks ranks.
  const Traffic& traffic() const;
  static constexpr Index kMaxTrafficRanks = 4096;

 private:
  std::shared_ptr<const Layout> source_, target_;
  LayoutPair pair_;
  std::set<std::string> only_;
  mutable std::once_flag summarised_, counted_;
  mutable PlanSummary summary_;
  mutable Traffic traffic_;
};

/// The part of one rank, as Python sees it. @pre the GIL is held
nb::object rank_plan_of(std::shared_ptr<const Plan> plan, RankArgument rank);

}  // namespace reshard::python
