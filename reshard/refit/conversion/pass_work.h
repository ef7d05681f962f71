// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/message/range_work.h"
#include "reshard/exec/worker_pool.h"
#include "reshard/refit/conversion/pass.h"

namespace reshard::conversion {

/// Runs conversions as part of packing (their output is sent) or of unpacking (their input was
/// received). An item is one unit of the passes, or all units of a matrix if its largest magnitude
/// must be known first.
class PassWork final : public RangeWork {
 public:
  enum class When : std::uint8_t { before, after };
  /// One pass for each copy of the target; they differ in their memory only. Borrows the passes and
  /// the pool.
  PassWork(std::vector<Pass*> passes, When when, WorkerPool& pool);

  /// Begins a refit into this copy.
  void restart(int copy);
  /// Begins a refit that converts nothing.
  void skip();
  std::size_t size() const override { return done_.size(); }
  std::span<const ItemRange> ranges() const override { return ranges_; }
  void run(std::span<const std::size_t> items) override;
  /// Runs the items that no message needed.
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
  std::vector<std::size_t> units_;  ///< to run next.
};

}  // namespace reshard::conversion
