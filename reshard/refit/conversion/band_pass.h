// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "reshard/refit/conversion/band_prints.h"
#include "reshard/refit/conversion/pass.h"

namespace reshard {

/// A conversion that is one with the copy: the rows of a unit are brought into a thread's cache and
/// converted from there into place, without memory in which all values land.
class BandPass final : public TileConsumer {
 public:
  /// One pass for each memory that may be converted into, alike but for that; their inputs are the
  /// same addresses, which may be names only.
  explicit BandPass(std::vector<Pass> passes);

  /// What the next refit does with what it brings: converts it into a copy,
  void begin(int copy);
  /// or fingerprints it, and compares the copy with what it would be converted to. `landed`: the
  /// copies of what is brought, always the same.
  void begin_check(int copy, const HeldCopies& landed);
  /// After a check: fingerprints, as HeldCopies::set() takes them. Errors: fingerprint()'s.
  Result<std::span<const Fingerprint>> prints();
  /// After a check: the local tensor that is not what it would be; empty if all are.
  std::string wrong() const;

  std::size_t size() const override { return now().size(); }
  std::span<const BandRange> ranges(std::size_t band) const override {
    return std::span(ranges_).subspan(band * each_, each_);
  }
  Index scratch_bytes() const override { return input_bytes_ + now().scratch_bytes(); }
  int sweeps() const override { return now().needs_amax() ? 2 : 1; }
  void take(int sweep, std::size_t band, std::byte* scratch) override;
  void end_sweep(int sweep) override;
  /// Bytes that are written.
  Index bytes() const { return now().bytes(); }

 private:
  const Pass& now() const { return passes_[copy_]; }
  Pass& now() { return passes_[copy_]; }
  RowPlaces places(std::size_t band, std::byte* scratch) const;

  std::vector<Pass> passes_;
  std::size_t copy_ = 0;
  bool checks_ = false, has_prints_ = false;
  std::size_t each_ = 1;  ///< ranges of a band.
  std::vector<BandRange> ranges_;
  Index input_bytes_ = 0;
  BandPrints prints_;
  std::atomic<std::size_t> wrong_{0};  ///< the first unit; size() if none.
  std::mutex mutex_;
  std::optional<Error> error_;
};

}  // namespace reshard
