// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "python/src/layout.h"
#include "reshard/convert/layout_pair.h"

namespace reshard::python {

/// reshard.Plan: the plan between two layouts. Immutable; its totals are computed on first use.
class Plan {
 public:
  Plan(std::shared_ptr<const Layout> source, std::shared_ptr<const Layout> target, LayoutPair pair)
      : source_(std::move(source)), target_(std::move(target)), pair_(std::move(pair)) {}

  const std::shared_ptr<const Layout>& source() const { return source_; }
  const std::shared_ptr<const Layout>& target() const { return target_; }
  const LayoutPair& pair() const { return pair_; }
  const Planner& planner() const { return *pair_.planner; }
  /// Thread-safe.
  const PlanSummary& summary() const;

 private:
  std::shared_ptr<const Layout> source_, target_;
  LayoutPair pair_;
  mutable std::once_flag summarised_;
  mutable PlanSummary summary_;
};

}  // namespace reshard::python
