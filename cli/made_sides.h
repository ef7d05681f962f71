// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cli/made_side.h"
#include "cli/run_job.h"

namespace reshard::cli {

/// What both sides of a run that quantises hold, made from its model's weights or the oracle, and
/// from nothing that a session did.
class MadeSides {
 public:
  /// The job's model is borrowed. Errors: those of the checkpoint and the layouts. @pre
  /// job.pair.quantises()
  static Result<MadeSides> of(const RunJob& job);
  MadeSides(MadeSides&&) noexcept;
  ~MadeSides();

  /// What the source is filled with.
  MadeSide& source() { return *source_; }
  /// What the target is to hold after a refit.
  MadeSide& target() { return *target_; }

 private:
  struct Files;
  MadeSides();
  std::shared_ptr<Files> files_;  ///< null where values are the oracle's.
  std::unique_ptr<MadeSide> source_, target_;
};

}  // namespace reshard::cli
