// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/run/run_refit.h"
#include "reshard/convert/conversion_routes.h"
#include "reshard/convert/layout_pair.h"
#include "reshard/plan/summary.h"

namespace reshard::cli {

/// A run before anything moves. Borrows arguments, model and pair.
struct RunJob {
  const RunArguments& arguments;
  const Model& model;
  const LayoutPair& pair;
  std::vector<ConversionRow> conversions;  ///< what a session does to tensors on the way.
  int threads = 1;                         ///< of this process.
  PlanSummary plan;
  double summary_seconds = 0;
};

/// Figures of a run by a session: sums or maxima over its ranks.
struct SessionFigures {
  int ranks = 0;              ///< of the group, idle ones included.
  std::string path, reason;   ///< the path taken, and why it is not the direct one.
  std::int64_t version = -1;  ///< committed last.
  Index staging_bytes = 0;    ///< most of any rank.
  Index peak_rss_bytes = 0;   ///< most of any rank.
  Index messages = 0;
  Index wire = 0, local = 0;  ///< bytes between ranks, and on a rank, as they travel.
  /// Seconds of the slowest rank in each phase of the run.
  double join = 0, fill = 0, prepare = 0;
  /// Seconds of the fastest refit by phase, each of the rank on which it took longest.
  double begin = 0, wait = 0, move = 0, finish = 0, check = 0, commit = 0;
};

/// The results of a run.
struct Outcome {
  RefitRuns runs;
  std::optional<bool> verified;
  std::string wrong;  ///< what verification found wrong, identical on all ranks; else empty.
  double verify_seconds = 0;
  std::optional<SessionFigures> session;  ///< none if one process copied for all ranks.
  std::optional<WhySlow> why_slow;        ///< of the last refit, if it was traced.
};

/// The reports of a run, ending in a newline.
std::string run_json(const RunJob& job, const Outcome& outcome);
std::string run_text(const RunJob& job, const Outcome& outcome);

}  // namespace reshard::cli
