// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "reshard/exec/conversion_observer.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/refit/conversion/pass.h"
#include "reshard/refit/conversion/tile_fingerprints.h"

namespace reshard::conversion {

/// Verifies what a rank receives and converts: fingerprints the input, and compares the target's
/// memory with what the input converts to.
class TargetCheck final : public ConversionObserver {
 public:
  /// One pass for each copy of the target; they differ in their output memory only. Their inputs
  /// are the same addresses, which need no memory behind them (AddressRange).
  /// `parts`: the target has only parts of the rows, which are compared while they are delivered.
  TargetCheck(std::vector<Pass> passes, bool parts) : passes_(std::move(passes)), parts_(parts) {}

  /// The rows that are observed next are of this copy. `replicas`: the pieces of the input; the
  /// same in every call. Errors: out of memory.
  Result<> begin(int copy, const CellReplicas& replicas, int workers);
  void consume(std::size_t unit, const RowPlaces& at, float amax, int worker) override;
  void deliver(std::span<const CopyTask> parts, int worker) override;
  /// Afterwards: fingerprints as CellReplicas::set() takes them. Errors: fingerprint()'s.
  Result<std::span<const Fingerprint>> fingerprints();
  /// Afterwards: a local tensor that differs from what its input converts to; "" if none does.
  std::string wrong() const;

 private:
  Pass& now() { return passes_[copy_]; }
  const Pass& now() const { return passes_[copy_]; }
  void found_wrong(std::size_t unit);

  std::vector<Pass> passes_;
  bool parts_ = false;
  std::size_t copy_ = 0;
  bool has_fingerprints_ = false;
  std::vector<std::size_t> consumed_;  ///< by worker: its latest unit.
  TileFingerprints fingerprints_;
  HostBuffer scratch_;
  Index scratch_stride_ = 0;
  std::atomic<std::size_t> wrong_{0};  ///< the first wrong unit; size() if none.
  std::mutex mutex_;
  std::optional<Error> error_;
};

/// Fingerprints what a rank's source converts to, which is never all in memory.
class SourceCheck {
 public:
  /// The outputs of the pass are addresses that need no memory behind them (AddressRange).
  explicit SourceCheck(Pass pass) : pass_(std::move(pass)) {}

  /// Converts everything, some rows at a time. Returns fingerprints of `replicas`, the pieces of
  /// the output, as CellReplicas::set() takes them; owned by this object. Errors: the control
  /// plane's `aborted`; `deadline`; out of memory; fingerprint()'s.
  Result<std::span<const Fingerprint>> read(const CellReplicas& replicas, WorkerPool& pool,
                                            const ControlPlane& control, Deadline deadline);

 private:
  Pass pass_;
  bool has_fingerprints_ = false;
  TileFingerprints fingerprints_;
};

}  // namespace reshard::conversion
