// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>
#include <vector>

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

/// The addresses of some rows of a conversion: the first byte of each part; null if there is no
/// factor.
struct RowPlaces {
  std::byte* values = nullptr;
  std::byte* data = nullptr;
  std::byte* scales = nullptr;
  std::byte* factor = nullptr;
};
/// The sizes of the parts of RowPlaces.
struct RowExtents {
  struct Part {
    Index bytes = 0;            ///< from the first to the last, including other columns in between.
    Index row = 0, stride = 0;  ///< bytes of a row, and from one row to the next.
  };
  Part values, data, scales, factor;
};

/// Converts some local tensors of one rank between plain values and data with scales, from memory
/// to memory. Made once and run repeatedly. The work is cut into units of rows; threads take one
/// unit at a time. A caller that has only some rows at a time runs the units itself. Only make()
/// and compare() allocate.
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

  /// Converts everything. Errors: the control plane's `aborted`; `deadline`. @pre no other call is
  /// in progress
  Result<> run(WorkerPool& pool, const ControlPlane& control, Deadline deadline);
  /// Converts into scratch memory and compares the result with the output's memory. Returns "", or
  /// the name of a local tensor that differs. Errors and precondition: as run().
  Result<std::string> compare(WorkerPool& pool, const ControlPlane& control, Deadline deadline);

  bool empty() const { return units_.empty(); }
  /// Bytes that run() writes.
  Index bytes() const { return bytes_; }
  To to() const { return to_; }

  /// For callers that run units: their number, addresses and sizes.
  std::size_t size() const { return units_.size(); }
  RowPlaces places(std::size_t unit) const;
  RowExtents extents(std::size_t unit) const;
  /// True if add_amax() of all units and end_amax() must precede the first convert().
  bool needs_amax() const { return needs_amax_; }
  /// Any thread; several threads may process different units at once. `at`: places(unit), or where
  /// the rows are instead.
  void add_amax(std::size_t unit, const RowPlaces& at);
  void end_amax();
  /// The same for one matrix, after add_amax() of all its units.
  void end_amax_of(std::size_t matrix);
  std::size_t matrix_of(std::size_t unit) const { return units_[unit].matrix; }
  void convert(std::size_t unit, const RowPlaces& at) const;
  /// Converts the input at `at` into `scratch` (of scratch_bytes()), and compares the result with
  /// the output at places(unit). False if they differ.
  bool is_converted(std::size_t unit, const RowPlaces& at, std::byte* scratch) const;
  Index scratch_bytes() const;
  /// The name of the unit's local tensor of values.
  const std::string& name(std::size_t unit) const;

 private:
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
  Result<> find_amaxes(WorkerPool& pool, const ControlPlane& control, Deadline deadline);
  template <class Work>
  Result<> for_each_unit(WorkerPool& pool, const ControlPlane& control, Deadline deadline,
                         Work&& work);

  std::shared_ptr<const ModelLayout> layout_;  ///< owns the names.
  To to_ = To::quantised;
  bool needs_amax_ = false;
  std::vector<Matrix> matrices_;
  std::vector<Unit> units_;
  Index bytes_ = 0;
};

}  // namespace reshard::conversion
