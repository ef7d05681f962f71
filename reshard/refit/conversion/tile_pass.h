// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "reshard/refit/conversion/pass.h"
#include "reshard/refit/conversion/tile_fingerprints.h"

namespace reshard::conversion {

/// A conversion that is part of the copy: a thread gathers the rows of a unit into its cache and
/// converts them from there into place. No memory holds all values.
class TilePass final : public TileConsumer {
 public:
  /// One pass for each copy of the target; they differ in their output memory only. Their inputs
  /// are the same addresses, which need no memory behind them (AddressRange).
  explicit TilePass(std::vector<Pass> passes);

  /// The next refit converts into this copy.
  void begin(int copy);
  /// The next refit fingerprints its input and compares this copy with what the input converts to.
  /// `replicas`: the pieces of the input; the same in every call.
  void begin_check(int copy, const CellReplicas& replicas);
  /// After a check: fingerprints as CellReplicas::set() takes them. Errors: fingerprint()'s.
  Result<std::span<const Fingerprint>> fingerprints();
  /// After a check: a local tensor that differs from what its input converts to; "" if none does.
  std::string wrong() const;

  std::size_t size() const override { return now().size(); }
  std::span<const TileRange> ranges(std::size_t tile) const override {
    return std::span(ranges_).subspan(tile * each_, each_);
  }
  Index scratch_bytes() const override { return input_bytes_ + now().scratch_bytes(); }
  int sweeps() const override { return now().needs_amax() ? 2 : 1; }
  void consume(int sweep, std::size_t tile, std::byte* scratch) override;
  void end_sweep(int sweep) override;
  /// Bytes that a conversion writes.
  Index bytes() const { return now().bytes(); }

 private:
  const Pass& now() const { return passes_[copy_]; }
  Pass& now() { return passes_[copy_]; }
  RowPlaces places(std::size_t tile, std::byte* scratch) const;

  std::vector<Pass> passes_;
  std::size_t copy_ = 0;
  bool checks_ = false, has_fingerprints_ = false;
  std::size_t each_ = 1;  ///< ranges of a tile.
  std::vector<TileRange> ranges_;
  Index input_bytes_ = 0;
  TileFingerprints fingerprints_;
  std::atomic<std::size_t> wrong_{0};  ///< the first wrong unit; size() if none.
  std::mutex mutex_;
  std::optional<Error> error_;
};

}  // namespace reshard::conversion
