// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "cli/commands.h"
#include "cli/plan_pair.h"
#include "cli/run_refit.h"

namespace reshard::cli {

/// What a run is about, before anything moves.
struct RunJob {
  const RunArguments& arguments;
  const Model& model;
  const PlanPair& pair;
  int threads = 1;
  PlanSummary plan;
  double summary_seconds = 0;
};

/// Of one process per rank, added up or at worst.
struct ProcessFigures {
  int processes = 0;
  std::string path, reason;  ///< the path taken, and why not the one hoped for.
  Index staging_bytes = 0;   ///< most of any rank.
  Index peak_rss_bytes = 0;  ///< most of any rank.
  Index messages = 0;
  /// Seconds of the slowest rank in each phase of the run.
  double join = 0, fill = 0, prepare = 0;
  /// Of the fastest refit, on the rank where each took longest.
  double wait = 0, move = 0, finish = 0;
};

/// What a run found out.
struct Outcome {
  RefitRuns runs;
  std::optional<bool> verified;
  double verify_seconds = 0;
  std::optional<ProcessFigures> processes;  ///< none where all ranks are in this process.
};

/// The reports of a run, ending in a newline.
std::string run_json(const RunJob& job, const Outcome& outcome);
std::string run_text(const RunJob& job, const Outcome& outcome);

}  // namespace reshard::cli
