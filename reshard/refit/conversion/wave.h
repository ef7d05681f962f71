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

namespace reshard {

/// Local tensors that have memory only while a wave is under way.
struct StagingTensors {
  std::shared_ptr<const ModelLayout> layout = nullptr;
  std::vector<SlotId> slots = {};
  std::optional<RankBuffers> memory = {};

  /// Bytes of this rank's local tensors, each from a cache line on.
  Index bytes(Rank me) const;
  /// Gives them memory from `at` on; returns where it ends. Their bytes are zeros from then on
  /// where no tensor is (blocks reach into them) if clear() is called before each use.
  Result<std::byte*> place(Rank me, std::byte* at);
  /// Zeros what has padding.
  void clear(Rank me);
};

/// Tensors that go the same way at the same time.
class Wave {
 public:
  /// `banded`: receivers convert what they read from their peers' memory as they read it, and
  /// nothing lands. @pre then the route is one `at_receiver`
  Wave(Route route, std::vector<bool> tensors, bool banded = false)
      : route_(route), tensors_(std::move(tensors)), banded_(banded) {}

  /// What of it is alike on all ranks: plans and what lands. Errors: the planner's.
  Result<> plan(const SessionSide& source, const SessionSide& target, const Routes& routes);
  /// Bytes of landing memory that it needs on this rank.
  Index landing_bytes(Rank me) const;
  /// This rank's memory; `arena` of landing_bytes(). Views are plain values in the sides' memory.
  struct Memory {
    const SessionSide& source;
    const SessionSide& target;
    const RankBuffers* source_values;
    std::vector<const RankBuffers*> target_values, target_stored;  ///< by copy.
    std::byte* arena;
    Index unit_bytes;  ///< of values that are converted at once, about.
  };
  /// Does nothing collective. Errors: memory missing.
  Result<> place(const Memory& memory, const Routes& routes, Rank me);
  /// Collective. Errors: as RankRefit::prepare(), where banded as PlannedMove::prepare_bands().
  Result<> prepare(const JobGroup& group, const Memory& memory);

  /// Collective. Errors: `corrupt` where `proved` and what landed is not what was sent, alike on
  /// all ranks; after any other the group is finished.
  Result<> run(const JobGroup& group, WorkerPool& pool, int copy, bool proved,
               SessionReport& report);

  /// Collective. What the copy holds is what the sources give, as they are now: what lands is
  /// fetched again, fingerprinted, and compared with the copy. Errors: as run().
  Result<> check(const JobGroup& group, WorkerPool& pool, int copy);

  Route route() const { return route_; }
  bool is_direct() const { return route_ == Route::plain || route_ == Route::stored; }
  std::vector<PlannedMove>& moves() { return moves_; }
  const std::vector<PlannedMove>& moves() const { return moves_; }

 private:
  enum class Moves : std::uint8_t { unproved, proved, again };
  Result<> convert(Pass& pass, const JobGroup& group, WorkerPool& pool, double& seconds);
  Result<> compare(Pass& pass, const JobGroup& group, WorkerPool& pool);
  Result<> fetch(const JobGroup& group, WorkerPool& pool, int copy, Moves which,
                 SessionReport& report);
  Result<> prove(const JobGroup& group, WorkerPool& pool, std::size_t m, int copy, Moves which,
                 double& seconds);
  bool converts_before() const;
  /// Packing and unpacking convert; else passes do, before and after a move.
  bool is_fused(std::size_t move) const { return moves_[move].refit().path() == "message"; }
  void make_work(WorkerPool& pool);
  Result<> begin_fetch(const JobGroup& group, WorkerPool& pool, int copy, Moves which,
                       SessionReport& report);
  bool lands(std::size_t move) const { return move + 1 < moves_.size() || !after_.empty(); }
  Pass& after(int copy) { return after_[after_.size() > 1 ? static_cast<std::size_t>(copy) : 0]; }

  Route route_;
  std::vector<bool> tensors_;              ///< by TensorId of the sides' values.
  std::array<StagingTensors, 2> landing_;  ///< in the order in which the bytes come to them.
  std::vector<PlannedMove> moves_;         ///< one, or two through what lies between.
  Pass before_, between_;
  std::vector<Pass> after_;  ///< by copy.
  bool banded_;
  AddressRange names_;               ///< of what would land, where banded.
  std::unique_ptr<BandPass> bands_;  ///< instead of after_, where banded.
  /// Of the first move: before_, and what follows it (between_ or after_).
  std::unique_ptr<PassWork> packing_, unpacking_;
};

}  // namespace reshard
