// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/direct/copy_units.h"
#include "reshard/exec/message/message_schedule.h"
#include "reshard/exec/message/range_work.h"

namespace reshard::message {

/// Decides when the items of a rank's RangeWork run while it sends and receives. Allocates nothing
/// after construction.
class MessageWork {
 public:
  MessageWork() = default;
  /// `before` and `after` as in RankRefitHooks. Tasks of sends must have their sources, and tasks
  /// of receives their destinations.
  MessageWork(RangeWork* before, RangeWork* after, const MessageSchedule& schedule,
              const direct::CopyUnits& locals, const direct::CopyUnits& repeats);

  /// Begins a refit.
  void restart();
  /// Called before chunks [first, end) of the schedule are packed, and after they are unpacked.
  void before_sends(std::size_t first, std::size_t end);
  void after_receives(std::size_t first, std::size_t end);
  void before_local(std::size_t unit);
  void after_local(std::size_t unit);
  void after_repeat(std::size_t unit);
  /// Called once everything has arrived: runs the items that receive nothing.
  void finish();
  /// Received bytes stay in the caches if `after` reads them next.
  CopyHint hint() const { return after_ == nullptr ? CopyHint::streaming : CopyHint::cached; }

 private:
  void need(std::span<const ItemBytes> items);
  void arrived(std::span<const ItemBytes> items);
  void run(RangeWork& work);

  RangeWork *before_ = nullptr, *after_ = nullptr;
  ItemLists sent_, read_locally_;  ///< by chunk, by unit.
  ItemLists received_, written_locally_, repeated_;
  std::vector<Index> due_, left_;   ///< bytes of each item of after_: in total, not yet arrived.
  std::vector<std::size_t> items_;  ///< to run next.
};

}  // namespace reshard::message
