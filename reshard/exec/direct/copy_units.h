// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/transform/copy.h"

namespace reshard {

/// Copies cut into units of work that threads take one by one.
struct CopyUnits {
  std::vector<CopyTask> tasks;
  std::vector<std::size_t>
      first;  ///< unit u is tasks [first[u], first[u + 1]); one entry more than units.
  std::vector<Index> bytes;  ///< per unit.
  std::size_t size() const { return bytes.size(); }
  std::span<const CopyTask> tasks_of(std::size_t unit) const {
    return std::span(tasks).subspan(first[unit], first[unit + 1] - first[unit]);
  }
};

/// Units of about `unit_bytes`. `groups[i]` is equal for neighbouring tasks that read one source
/// tensor: a large group is cut across, so that each unit has the same rows of all its tasks and
/// source lines are read once.
/// @pre tasks and groups have one size; tasks of one group are neighbours
CopyUnits make_units(const std::vector<CopyTask>& tasks, const std::vector<std::size_t>& groups,
                     Index unit_bytes);

/// Part i of n of a copy: of its outermost loop's turns, or of its run where it has no loop. May be
/// empty (0 bytes).
StridedCopy part_of_copy(const StridedCopy& copy, Index i, Index n);

}  // namespace reshard
