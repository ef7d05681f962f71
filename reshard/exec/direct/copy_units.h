// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/transform/copy.h"

namespace reshard::direct {

/// Copies cut into units of work; threads take one unit at a time.
struct CopyUnits {
  std::vector<CopyTask> tasks;
  std::vector<std::size_t>
      first;                 ///< unit u has tasks [first[u], first[u + 1]); units + 1 entries.
  std::vector<Index> bytes;  ///< of each unit.
  std::size_t size() const { return bytes.size(); }
  std::span<const CopyTask> tasks_of(std::size_t unit) const {
    return std::span(tasks).subspan(first[unit], first[unit + 1] - first[unit]);
  }
};

/// Cuts tasks into units of about `unit_bytes`. groups[i] is the group of tasks[i]: tasks that read
/// one source tensor share a group. A large group is cut across its tasks, so that each unit has
/// the same rows of all of them and each source line is read once.
/// @pre tasks and groups have equal sizes; tasks of one group are adjacent
CopyUnits make_units(const std::vector<CopyTask>& tasks, const std::vector<std::size_t>& groups,
                     Index unit_bytes);

}  // namespace reshard::direct
