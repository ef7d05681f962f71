// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "cli/commands.h"
#include "reshard/io/files/json.h"
#include "reshard/simulate/predict.h"

namespace reshard::cli {

/// The prediction that `plan --cluster` prints.
class PlanPrediction {
 public:
  /// None without --cluster. `plan` is the summary with its pairs, or null: then it is made here.
  /// Errors: those of the file, and of the simulation.
  static Result<std::optional<PlanPrediction>> of(const PlanArguments& arguments,
                                                  const Planner& planner, const PlanSummary* plan);

  /// Adds the keys predicted_seconds, bound_seconds, bound_by and simulation, which are stable.
  void add_to(Json::Object& object) const;
  /// The prediction for all ranks; and when one of them moves its bytes, if it is given.
  std::string text(std::optional<Rank> rank = {}) const;

 private:
  PlanPrediction(ClusterSpec cluster, Prediction prediction, Index bytes, double seconds)
      : cluster_(std::move(cluster)),
        prediction_(std::move(prediction)),
        bytes_(bytes),
        seconds_(seconds) {}
  /// False if the cluster gives no rate for anything that moves bytes here: then nothing is known.
  bool has_rates() const { return bytes_ == 0 || prediction_.simulation.bound_seconds > 0; }
  /// The rank that is done last.
  const RankSeconds& slowest() const;
  std::string phases(const RankSeconds& rank) const;

  ClusterSpec cluster_;
  Prediction prediction_;
  Index bytes_;     ///< delivered.
  double seconds_;  ///< of simulating.
};

}  // namespace reshard::cli
