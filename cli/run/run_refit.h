// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/plan/planner.h"

namespace reshard::cli {

/// The costs of repeated refits.
struct RefitRuns {
  std::string device = "cpu";   ///< that has the memory: "cpu", or the name of a GPU.
  std::vector<double> seconds;  ///< of each.
  Index bytes = 0;              ///< delivered by each.
  Index copies = 0;             ///< memory copies of each.
  double check_seconds = 0;     ///< of the fastest comparison of fingerprints; 0: none.
  double plain_seconds = 0;     ///< of a plain copy (plain_copy.h) of as many bytes; 0: unknown.

  double best_seconds() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double bytes_per_second() const { return rate(best_seconds()); }
  double plain_bytes_per_second() const { return rate(plain_seconds); }

 private:
  double rate(double s) const { return s > 0 ? static_cast<double>(bytes) / s : 0; }
};

/// Refits between ranks that are memory of this process, arguments.repeat times. Errors: those of
/// the refit.
Result<RefitRuns> run_direct(const Planner& planner, const RankBuffers& source,
                             const RankBuffers& target, const RunArguments& arguments, int threads);

}  // namespace reshard::cli
