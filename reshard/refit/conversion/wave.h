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
#include "reshard/refit/conversion/pass_work.h"
#include "reshard/refit/conversion/planned_move.h"
#include "reshard/refit/conversion/routes.h"

namespace reshard::conversion {

/// Local tensors that have memory only while their wave runs.
struct StagingTensors {
  std::shared_ptr<const ModelLayout> layout = nullptr;
  std::vector<SlotId> slots = {};
  std::optional<RankBuffers> memory = {};

  /// Bytes of this rank's local tensors, each rounded up to whole cache lines.
  Index bytes(Rank me) const;
  /// Places them at `at`; returns the end. Call clear() before each use: blocks may extend into
  /// padding, which must be zero.
  Result<std::byte*> place(Rank me, std::byte* at);
  /// Zeros the tensors that have padding.
  void clear(Rank me);
};

/// Tensors that take the same route at the same time.
class Wave {
 public:
  /// `tiled`: receivers convert tiles as they read them from their peers' memory, without staging
  /// tensors. @pre then the route is one of `..._at_receiver`
  Wave(Route route, std::vector<bool> tensors, bool tiled = false)
      : route_(route), tensors_(std::move(tensors)), tiled_(tiled) {}

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
  Result<> place(const Memory& memory, const Routes& routes, Rank me);
  /// Collective. Errors: as RankRefit::prepare(); if tiled, as PlannedMove::prepare_tiles().
  Result<> prepare(const JobGroup& group, const Memory& memory);

  /// Collective. Errors: with `verify`, `corrupt`, identical on all ranks, if what arrived is not
  /// what was sent or a conversion is wrong; any other error has aborted the group.
  Result<> run(const JobGroup& group, WorkerPool& pool, int copy, bool verify,
               SessionReport& report);

  /// Collective. Verifies that the copy holds what the sources convert to now: fetches the staging
  /// tensors again, fingerprints them, and compares the copy with them. Errors: as run().
  Result<> check(const JobGroup& group, WorkerPool& pool, int copy);

  Route route() const { return route_; }
  bool is_direct() const { return route_ == Route::plain || route_ == Route::stored; }
  std::vector<PlannedMove>& moves() { return moves_; }
  const std::vector<PlannedMove>& moves() const { return moves_; }

 private:
  enum class Moves : std::uint8_t { unverified, verified, again };
  Result<> convert(Pass& pass, const JobGroup& group, WorkerPool& pool, double& seconds);
  Result<> compare(Pass& pass, const JobGroup& group, WorkerPool& pool);
  Result<> fetch(const JobGroup& group, WorkerPool& pool, int copy, Moves which,
                 SessionReport& report);
  Result<> verify(const JobGroup& group, WorkerPool& pool, std::size_t m, int copy, Moves which,
                  double& seconds);
  bool converts_before() const;
  /// True if packing and unpacking convert; otherwise passes convert before and after the move.
  bool is_fused(std::size_t move) const { return moves_[move].refit().path() == "message"; }
  void make_work(WorkerPool& pool);
  Result<> begin_fetch(const JobGroup& group, WorkerPool& pool, int copy, Moves which,
                       SessionReport& report);
  bool is_staged(std::size_t move) const { return move + 1 < moves_.size() || !after_.empty(); }
  Pass& after(int copy) { return after_[after_.size() > 1 ? static_cast<std::size_t>(copy) : 0]; }

  Route route_;
  std::vector<bool> tensors_;             ///< by TensorId of the sides' values.
  std::array<StagingTensors, 2> staged_;  ///< in the order in which bytes reach them.
  std::vector<PlannedMove> moves_;        ///< one, or two by way of `Routes::between`.
  Pass before_, between_;
  std::vector<Pass> after_;  ///< by copy.
  bool tiled_;
  AddressRange names_;               ///< addresses of the staging tensors, if tiled.
  std::unique_ptr<TilePass> tiles_;  ///< replaces after_, if tiled.
  /// What the first move converts: before_; and what follows it (between_ or after_).
  std::unique_ptr<PassWork> packing_, unpacking_;
};

}  // namespace reshard::conversion
