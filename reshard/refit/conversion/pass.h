// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "reshard/exec/conversion_observer.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/model/quant/quantised_layout.h"
#include "reshard/transform/quantise.h"
#include "reshard/transport/control.h"

namespace reshard::conversion {

/// Bytes of a cache line.
inline constexpr Index kLine = 64;
/// `bytes`, rounded up to whole cache lines.
inline Index lines(Index bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// The sizes of the parts of RowPlaces.
struct RowExtents {
  struct Part {
    Index bytes = 0;            ///< from the first to the last, including other columns in between.
    Index row = 0, stride = 0;  ///< bytes of a row, and from one row to the next.
  };
  Part values, data, scales, factor;
};

/// Converts some local tensors of one rank between plain values and data with scales, to verify
/// what a refit converted. Made once and run repeatedly. The work is cut into units of rows;
/// threads take one unit at a time. Only make() allocates.
class Pass {
 public:
  enum class To : std::uint8_t { quantised, values };
  static constexpr Index kUnitBytes = Index{512} << 10;

  Pass() = default;
  /// Takes this rank's pairs of `layout` whose values are among `slots`, in units of about
  /// `unit_bytes` of values. Input addresses need no memory behind them if the caller runs the
  /// units itself. Errors: memory missing (named); those of check_quant_format().
  static Result<Pass> make(const QuantisedLayout& layout, const std::vector<SlotId>& slots,
                           const RankBuffers& values, const RankBuffers& stored, Rank me, To to,
                           Index unit_bytes = kUnitBytes);

  /// Calls work(unit, worker) for all units, after finding the amaxes that they need in the input's
  /// memory. Errors: the control plane's `aborted`; `deadline`. @pre no other call is in progress
  Result<> for_each(WorkerPool& pool, const ControlPlane& control, Deadline deadline,
                    const std::function<void(std::size_t, int)>& work);

  bool empty() const { return units_.empty(); }
  To to() const { return to_; }

  /// For callers that run units: their number, addresses and sizes.
  std::size_t size() const { return units_.size(); }
  RowPlaces places(std::size_t unit) const;
  RowExtents extents(std::size_t unit) const;
  /// True if set_amax() must precede convert().
  bool needs_amax() const { return needs_amax_; }
  /// Sets the amax of the unit's matrix, found elsewhere. Several threads may set the same one.
  void set_amax(std::size_t unit, float amax);
  /// Any thread; several threads may process different units at once. `at`: places(unit), or where
  /// the rows are instead.
  void convert(std::size_t unit, const RowPlaces& at) const;
  /// Sets the output of `at` to be at `into` (of scratch_bytes()), part after part, each at a
  /// multiple of 64.
  void place_output(std::size_t unit, std::byte* into, RowPlaces& at) const;
  /// Converts the input at `at` into `scratch` (of scratch_bytes()), and compares the result with
  /// the output at places(unit). False if they differ.
  bool is_converted(std::size_t unit, const RowPlaces& at, std::byte* scratch) const;
  Index scratch_bytes() const;
  /// The name of the unit's local tensor of values.
  const std::string& name(std::size_t unit) const;

 private:
  void end_amax();
  struct Matrix {
    FloatMatrix values;
    QuantMatrix stored;
    const std::string* name = nullptr;
    std::size_t first = 0, end = 0;  ///< range of its units.
    float amax = 0;
  };
  struct Unit {
    std::size_t matrix = 0;
    Index begin = 0, end = 0;  ///< rows.
    float amax = 0;
  };

  void add(Matrix matrix, Index unit_bytes);
  bool equal(std::size_t unit, const RowPlaces& a, const RowPlaces& b) const;
  template <class Work>
  Result<> for_each_unit(WorkerPool& pool, const ControlPlane& control, Deadline deadline,
                         Work&& work);

  std::shared_ptr<const ModelLayout> layout_;  ///< owns the names.
  To to_ = To::quantised;
  bool needs_amax_ = false;
  std::vector<Matrix> matrices_;
  std::vector<Unit> units_;
};

}  // namespace reshard::conversion
