// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"
#include "reshard/plan/planner.h"
#include "reshard/refit/session/side.h"

namespace reshard {

/// Two layouts of one model and the plan between them.
struct LayoutPair {
  std::shared_ptr<const ModelLayout> source, target;  ///< what the plan is between.
  /// What is in memory. Where a plan between what is stored moves everything, that is plain here.
  LayoutSide from, to;
  std::shared_ptr<const Planner> planner;
  double layout_seconds = 0, planner_seconds = 0;
  /// Tensors that one side may lack.
  std::set<std::string> ignore = {};
  /// What the layouts decided by rules, and what becomes of quantised tensors and of what the
  /// source lacks; empty for most plans.
  std::vector<std::string> notes = {};

  /// Values are quantised or dequantised on their way.
  bool quantises() const { return from.quantised || to.quantised; }
};

/// The side as sessions take it, without memory.
SessionSide session_side(const LayoutSide& side);

/// True where a plan between what is stored moves everything: nothing is quantised, or both sides
/// are in one format and all scales go along. Else plans are made between values.
bool moves_as_stored(const LayoutSide& from, const LayoutSide& to);

/// The target of a source, as make_side() has it. Where the notation leaves open where blocks are
/// counted from, they are counted so that data and scales move as they are, if any grid lets them.
Result<LayoutSide> make_target(const std::string& text, const Model& model, const LayoutSide& from);

/// Says that so many tensors, quantised on both sides, cannot move as they are, and why; empty
/// for none.
std::string requantised_note(const LayoutSide& from, const LayoutSide& to, Index tensors);

/// Makes both layouts and the plan. The target keeps its own scales of KV caches where the source
/// has none, as no trainer has. Errors: those of make_layout, Planner::make and check_ignored.
/// `filled`: the source is filled from the model's weights; one that these must be quantised for
/// stays a quantised side.
Result<LayoutPair> make_layout_pair(const Model& model, const std::string& from,
                                    const std::string& to, bool filled = false);

}  // namespace reshard
