// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "reshard/exec/device/program_launches.h"
#include "reshard/program/program.h"

namespace reshard::device {

/// Which steps of a program can begin, in a run where one stream runs the tiles that are not
/// resident, in the order of their launches: such a tile may follow another as soon as that is
/// launched. Everything else waits until what it waits for is done. For one thread. Allocates
/// nothing after construction.
class StepOrder {
 public:
  StepOrder() = default;
  /// Borrows the program.
  StepOrder(const Program& program, const ProgramLaunches& launches);

  /// Begins a run.
  void restart();
  /// The next tile that is not resident and can be launched; none if there is none now.
  std::optional<StepId> next_tile() const;
  /// Launches it.
  void launch();
  /// Ends a step of any kind.
  void end(StepId s);
  /// True if the step waits for nothing any more.
  bool is_free(StepId s) const { return left_[s.index()] == 0; }
  /// True if all steps but a last barrier have ended.
  bool all_ended() const { return not_ended_ == 0; }

 private:
  /// Edges of each step, in one table.
  struct Edges {
    std::vector<std::uint32_t> first;
    std::vector<StepId> to;
  };
  template <class F>
  Edges edges_where(F&& is_edge) const;
  void release(const Edges& edges, StepId s);

  const Program* program_ = nullptr;
  std::vector<bool> launched_;  ///< by step: it is a tile that is launched alone.
  Edges at_launch_, at_end_;
  std::vector<std::uint32_t> waits_, left_;  ///< by step.
  std::vector<StepId> ready_;
  std::size_t next_ = 0, not_ended_ = 0, num_steps_ = 0;
};

}  // namespace reshard::device
