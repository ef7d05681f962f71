// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/message/range_work.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/refit/conversion/pass.h"

namespace reshard {

/// Conversions that are one with packing (what they write is sent) or with unpacking (what they
/// read has come). An item is a unit of the passes; all units of a matrix where its largest
/// magnitude must be known first.
class PassWork final : public RangeWork {
 public:
  enum class When : std::uint8_t { before, after };
  /// One pass for each memory that may be converted into, alike but for that; borrowed, and so is
  /// the pool.
  PassWork(std::vector<Pass*> passes, When when, WorkerPool& pool);

  /// A refit into this copy begins;
  void restart(int copy);
  /// or one in which nothing is to be converted.
  void skip();
  std::size_t size() const override { return done_.size(); }
  std::span<const ItemRange> ranges() const override { return ranges_; }
  void run(std::span<const std::size_t> items) override;
  /// What nobody has needed.
  void run_rest();

 private:
  struct Item {
    std::size_t first = 0, end = 0;  ///< units.
  };

  template <class Work>
  void for_each_unit(Work&& work);

  std::vector<Pass*> passes_;
  WorkerPool& pool_;
  std::size_t copy_ = 0;
  std::vector<Item> items_;
  std::vector<ItemRange> ranges_;
  std::vector<char> done_;          ///< by item.
  std::vector<std::size_t> units_;  ///< to be run next.
};

}  // namespace reshard
