// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/exec/conversion_verifier.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/program/compile.h"
#include "reshard/refit/conversion/tile_fingerprints.h"

namespace reshard::conversion {

/// One side of a plan that converts, on one rank.
struct ConvertedPlan {
  SideConversion conversion;
  bool is_target = false;
  Rank me;
  Index unit_bytes = 0;  ///< of values that are converted at once, about.
  /// The plan's local tensors of that side: addresses, which need no memory behind them.
  const RankBuffers* planned = nullptr;
  bool plans_values() const { return conversion.quantises == is_target; }
};

/// Fingerprints the rows that one side converts, in the form that the plan transfers: the values,
/// or the data and scales.
class ConversionCheck : public ConversionVerifier {
 public:
  /// Errors: those of check_quant_format().
  static Result<std::unique_ptr<ConversionCheck>> make(const ConvertedPlan& plan);

  /// To call before the rows are seen. `replicas`: the pieces of the planned tensors; the same in
  /// every call.
  void begin(const CellReplicas& replicas);
  void see(std::size_t unit, const RowPlaces& at) override;
  void differs(std::size_t unit) override;
  /// Afterwards: fingerprints as CellReplicas::set() takes them, owned by this object. Errors:
  /// fingerprint()'s.
  Result<std::span<const Fingerprint>> fingerprints();
  /// Afterwards: a local tensor that differs from what its input converts to; "" if none does.
  std::string wrong() const;

 private:
  TileRanges ranges_;
  std::vector<const std::string*> names_;  ///< of the local tensors, by unit.
  bool plans_values_ = false, has_fingerprints_ = false;
  TileFingerprints fingerprints_;
  std::atomic<std::size_t> wrong_{0};  ///< the first wrong unit; their number if none.
  std::mutex mutex_;
  std::optional<Error> error_;
};

}  // namespace reshard::conversion
