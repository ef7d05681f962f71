// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <vector>

#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/model/quantised_layout.h"
#include "reshard/transform/quantise.h"
#include "reshard/transport/control.h"

namespace reshard {

/// Conversions of some local tensors of one rank between plain values and data with scales, from
/// memory to memory, made once and run again and again. run() allocates nothing.
class Pass {
 public:
  enum class To : std::uint8_t { quantised, values };

  Pass() = default;
  /// Pairs of `layout` whose values are among `slots` and that this rank has. Errors: memory that
  /// is missing (named); what check_quant_format() says.
  static Result<Pass> make(const QuantisedLayout& layout, const std::vector<SlotId>& slots,
                           const RankBuffers& values, const RankBuffers& stored, Rank me, To to);

  /// Errors: the control plane's `aborted`; `deadline`. @pre no other run of it is under way
  Result<> run(WorkerPool& pool, const ControlPlane& control, Deadline deadline);
  bool empty() const { return units_.empty(); }
  /// Bytes that run() writes.
  Index bytes() const { return bytes_; }

 private:
  struct Matrix {
    FloatMatrix values;
    QuantMatrix stored;
    std::size_t first = 0, end = 0;  ///< of its units.
    float amax = 0;
  };
  struct Unit {
    std::size_t matrix = 0;
    Index begin = 0, end = 0;  ///< rows.
    float amax = 0;
  };

  void add(const FloatMatrix& values, const QuantMatrix& stored);
  void convert(const Unit& unit) const;
  template <class Work>
  Result<> for_each_unit(WorkerPool& pool, const ControlPlane& control, Deadline deadline,
                         Work&& work);

  To to_ = To::quantised;
  bool needs_amax_ = false;
  std::vector<Matrix> matrices_;
  std::vector<Unit> units_;
  Index bytes_ = 0;
};

}  // namespace reshard
