// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/table.h"
#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"
#include "reshard/io/plan_json.h"
#include "reshard/plan/planner.h"
#include "reshard/refit/session/side.h"

namespace reshard::cli {

/// Two layouts of one model and the plan between them.
struct PlanPair {
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
Result<PlanPair> plan_pair(const Model& model, const std::string& from, const std::string& to,
                           bool filled = false);

/// "2 tensors of the checkpoint left out, such as '...'" @pre there are such
std::string left_out_text(const Model& model);
/// "qwen3-4b: 36 layers, 4.02 B parameters in 398 tensors, 8.04 GB"
std::string model_line(const Model& model);
/// Two rows: each side's layout, ranks and what its ranks hold.
Table sides_table(const PlanPair& pair);
/// What the plan does to values and what it leaves out, a line each; empty for most plans.
std::string notes_text(const PlanPair& pair, const Style& style);
/// What the whole plan moves.
Table summary_table(const PlanSummary& plan);

}  // namespace reshard::cli
