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

namespace reshard {

/// Bytes of a cache line.
inline constexpr Index kLine = 64;
/// `bytes`, rounded up to whole cache lines.
inline Index lines(Index bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Where some rows of a conversion lie: the first byte of each part, null for a factor that is not
/// there.
struct RowPlaces {
  std::byte* values = nullptr;
  std::byte* data = nullptr;
  std::byte* scales = nullptr;
  std::byte* factor = nullptr;
};
/// How much they are.
struct RowExtents {
  struct Part {
    Index bytes = 0;            ///< from the first to the last, other columns between included.
    Index row = 0, stride = 0;  ///< bytes of a row, and from row to row.
  };
  Part values, data, scales, factor;
};

/// Conversions of some local tensors of one rank between plain values and data with scales, from
/// memory to memory, made once and run again and again. Cut into units of rows that threads take
/// one by one; a user that has only some rows at a time runs the units itself. Nothing here
/// allocates after make().
class Pass {
 public:
  enum class To : std::uint8_t { quantised, values };
  static constexpr Index kUnitBytes = Index{512} << 10;

  Pass() = default;
  /// Pairs of `layout` whose values are among `slots` and that this rank has, in units of about
  /// `unit_bytes` of values. Addresses of what is read may be names only where the units are run
  /// by the user. Errors: memory that is missing (named); what check_quant_format() says.
  static Result<Pass> make(const QuantisedLayout& layout, const std::vector<SlotId>& slots,
                           const RankBuffers& values, const RankBuffers& stored, Rank me, To to,
                           Index unit_bytes = kUnitBytes);

  /// All of it. Errors: the control plane's `aborted`; `deadline`. @pre no other run of it is under
  /// way
  Result<> run(WorkerPool& pool, const ControlPlane& control, Deadline deadline);
  /// Converts into scratch memory and compares with what is there. "", or which local tensor is not
  /// what it would be. Errors and precondition: as run().
  Result<std::string> compare(WorkerPool& pool, const ControlPlane& control, Deadline deadline);

  bool empty() const { return units_.empty(); }
  /// Bytes that run() writes.
  Index bytes() const { return bytes_; }
  To to() const { return to_; }

  /// Units, for users that run them: where one lies and how much it is.
  std::size_t size() const { return units_.size(); }
  RowPlaces places(std::size_t unit) const;
  RowExtents extents(std::size_t unit) const;
  /// True where add_amax() of all units and end_amax() come before the first convert().
  bool needs_amax() const { return needs_amax_; }
  /// Any thread, different units at once. `at`: as places(), or where the rows are instead.
  void add_amax(std::size_t unit, const RowPlaces& at);
  void end_amax();
  /// The same for one matrix, once all its units have been added.
  void end_amax_of(std::size_t matrix);
  std::size_t matrix_of(std::size_t unit) const { return units_[unit].matrix; }
  void convert(std::size_t unit, const RowPlaces& at) const;
  /// Converts into `scratch`, of scratch_bytes(), and compares with what is at places(). What is
  /// read is at `at`. False where they differ.
  bool is_converted(std::size_t unit, const RowPlaces& at, std::byte* scratch) const;
  Index scratch_bytes() const;
  /// The name of the unit's local tensor, as values.
  const std::string& name(std::size_t unit) const;

 private:
  struct Matrix {
    FloatMatrix values;
    QuantMatrix stored;
    const std::string* name = nullptr;
    std::size_t first = 0, end = 0;  ///< of its units.
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

  std::shared_ptr<const ModelLayout> layout_;  ///< of names.
  To to_ = To::quantised;
  bool needs_amax_ = false;
  std::vector<Matrix> matrices_;
  std::vector<Unit> units_;
  Index bytes_ = 0;
};

}  // namespace reshard
