// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/make_layout.h"
#include "reshard/io/open_model.h"
#include "reshard/plan/planner.h"
#include "reshard/refit/session_side.h"

namespace reshard {

/// Two layouts of one model and the plan between them.
struct LayoutPair {
  std::shared_ptr<const ModelLayout> source, target;  ///< the two ends of the plan.
  /// The sides in memory. Both count as plain if a plan between stored layouts moves everything.
  LayoutSide from, to;
  std::shared_ptr<const Planner> planner;
  double layout_seconds = 0, planner_seconds = 0;
  std::set<std::string> ignore = {};  ///< tensors that one side may lack.
  std::set<std::string> only = {};    ///< the tensors to move; empty: all.
  /// Choices that the layouts made by rules, and the treatment of quantised tensors and of tensors
  /// that the source lacks; empty for most plans.
  std::vector<std::string> notes = {};

  /// True if values are quantised or dequantised on the way.
  bool quantises() const { return from.quantised || to.quantised; }
};

/// The side in the form that sessions take, without memory.
SessionSide session_side(const LayoutSide& side);

/// True if a plan between the stored layouts moves everything: nothing is quantised, or both sides
/// have one format and all scales move as they are. Otherwise plan between values.
bool moves_as_stored(const LayoutSide& from, const LayoutSide& to);

/// make_side() for the target of `from`. If the notation leaves the block grid open, chooses the
/// grid that lets data and scales move as they are, if there is one.
Result<LayoutSide> make_target(const std::string& text, const Model& model, const LayoutSide& from);

/// Refuses two sides of which one holds codes as they are stored, and the other values.
Result<> check_forms(const Model& model, const LayoutSide& source, const LayoutSide& target);

/// A note that `tensors` tensors, quantised on both sides, cannot move as they are, and why; empty
/// for 0.
std::string requantised_note(const LayoutSide& from, const LayoutSide& to, Index tensors);

/// Notes on what was not understood of the model, on the choices that the layouts made by rules,
/// and on data, scales and codes that move as they are.
std::vector<std::string> notes_of(const Model& model, const LayoutSide& from, const LayoutSide& to);

/// A note for each form that the planner's tensors take where only one side quantises them.
std::vector<std::string> quantisation_notes(const LayoutSide& from, const LayoutSide& to,
                                            const Planner& planner);

struct PairOptions {
  /// Patterns ('*' any characters, '#' digits) of tensors that one side may lack.
  std::set<std::string> ignore = {};
  /// Patterns of the tensors to move; empty: all.
  std::set<std::string> only = {};
  /// PlanOptions::relays. A note says so if the pair quantises: its routes are direct.
  std::shared_ptr<const RelayOptions> relays = nullptr;
  /// The source's memory will be filled from the model's checkpoint. If that quantises its weights,
  /// the pair counts as one that quantises.
  bool filled = false;
};

/// The plan between two sides of the model. The target keeps its own KV-cache scales if the source
/// has none (trainers do not). Errors: a pattern that matches no tensor; those of Planner::make().
/// @pre both are sides of the model, or of one with an equal digest
Result<LayoutPair> pair_sides(const Model& model, const LayoutSide& source,
                              const LayoutSide& target, const PairOptions& options = {});

/// Makes both layouts and the plan, without the model's ignored tensors. Errors: those of
/// make_layout(), pair_sides() and check_ignored().
Result<LayoutPair> make_layout_pair(const Model& model, const std::string& from,
                                    const std::string& to, const PairOptions& options = {});

}  // namespace reshard
