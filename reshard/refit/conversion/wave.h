// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/memory/address_range.h"
#include "reshard/memory/host_buffer.h"
#include "reshard/refit/conversion/planned_move.h"
#include "reshard/refit/conversion/routes.h"

namespace reshard::conversion {

/// Local tensors of one rank that are not in memory, or only while their wave runs.
struct StagingTensors {
  std::shared_ptr<const ModelLayout> layout = nullptr;
  std::vector<SlotId> slots = {};
  std::optional<RankBuffers> memory = {};

  /// Bytes of this rank's local tensors, each rounded up to whole cache lines.
  Index bytes(Rank me) const;
  /// Places them at `at`.
  Result<> place(Rank me, std::byte* at);
  /// Zeros the tensors that have padding. For tensors in memory, before each use: blocks may extend
  /// into padding, which must be zero.
  void clear(Rank me);
};

/// Tensors that take the same route at the same time.
class Wave {
 public:
  Wave(Route route, std::vector<bool> tensors) : route_(route), tensors_(std::move(tensors)) {}

  /// Makes what is identical on all ranks: plans and the layouts of staging tensors. Errors: the
  /// planner's.
  Result<> plan(const SessionSide& source, const SessionSide& target, const Routes& routes);
  /// Memory for staging tensors that the wave needs on this rank. Bytes.
  Index staging_tensor_bytes(Rank me) const;
  /// This rank's memory. `arena` has staging_tensor_bytes(). The `values` views are plain values in
  /// the sides' memory.
  struct Memory {
    const SessionSide& source;
    const SessionSide& target;
    const RankBuffers* source_values;
    std::vector<const RankBuffers*> target_values, target_stored;  ///< by copy.
    std::byte* arena;
    Index unit_bytes;  ///< approximate bytes of values that are converted at once.
  };
  /// Not collective. Errors: memory missing.
  Result<> place(const Memory& memory, Rank me);
  /// Collective. Errors: as RankRefit::prepare().
  Result<> prepare(const JobGroup& group, const Memory& memory);

  /// Collective. Errors: with `verify`, `corrupt`, identical on all ranks, if what arrived is not
  /// what was sent or a conversion is wrong; any other error has aborted the group.
  Result<> run(const JobGroup& group, int copy, bool verify, SessionReport& report);

  /// Collective. Verifies that the copy holds what the sources convert to now. Errors: as run().
  Result<> check(const JobGroup& group, int copy);

  Route route() const { return route_; }
  bool is_direct() const { return route_ == Route::plain || route_ == Route::stored; }
  std::vector<PlannedMove>& moves() { return moves_; }
  const std::vector<PlannedMove>& moves() const { return moves_; }

 private:
  Result<> add_checks(const Memory& memory, Rank me);
  Result<> verify(const JobGroup& group, std::size_t move, int copy, double& seconds);
  PlannedMove::Memory memory_of(const Memory& memory) const;

  Route route_;
  std::vector<bool> tensors_;       ///< by TensorId of the sides' values.
  std::vector<PlannedMove> moves_;  ///< one, or two by way of `Routes::between`.
  RefitConversions conversions_;    ///< of the first move.
  StagingTensors between_;          ///< what the first of two moves writes.
  StagingTensors from_, into_;      ///< the plan's tensors of a side that is converted.
  AddressRange from_names_, into_names_;
  std::unique_ptr<SourceCheck> from_check_;
  std::unique_ptr<TargetCheck> into_check_;
};

}  // namespace reshard::conversion
