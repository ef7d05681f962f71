// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/direct/copy_units.h"
#include "reshard/exec/message/message_schedule.h"
#include "reshard/exec/message/range_work.h"

namespace reshard {

/// When the items of a rank's work are due while it sends and receives. Allocates nothing after it
/// is made.
class MessageWork {
 public:
  MessageWork() = default;
  /// `before` and `after` as in RankRefitHooks; tasks of sends have their sources, and tasks of
  /// receives their destinations.
  MessageWork(RangeWork* before, RangeWork* after, const MessageSchedule& schedule,
              const CopyUnits& locals, const CopyUnits& repeats);

  /// A refit begins.
  void restart();
  /// Chunks [first, end) of the schedule are packed next; they have been unpacked.
  void before_sends(std::size_t first, std::size_t end);
  void after_receives(std::size_t first, std::size_t end);
  void before_local(std::size_t unit);
  void after_local(std::size_t unit);
  void after_repeat(std::size_t unit);
  /// All has come: the items that nothing came for.
  void finish();
  /// Where what comes is to be: in the caches where it is read next.
  CopyHint hint() const { return after_ == nullptr ? CopyHint::streaming : CopyHint::cached; }

 private:
  void need(std::span<const ItemBytes> items);
  void came(std::span<const ItemBytes> items);
  void run(RangeWork& work);

  RangeWork *before_ = nullptr, *after_ = nullptr;
  ItemLists sent_, read_locally_;  ///< by chunk, by unit.
  ItemLists received_, written_locally_, repeated_;
  std::vector<Index> due_, left_;   ///< bytes of each item of after_: all, still to come.
  std::vector<std::size_t> items_;  ///< to be run next.
};

}  // namespace reshard
