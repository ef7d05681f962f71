// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "reshard/index/interval.h"

namespace reshard {

/// The limits of this process's control group and of all groups around it, the least of each: those
/// of a container, of a batch job or of a systemd unit. None: there is no such limit, or this
/// process cannot see it.
struct ControlGroupLimits {
  int version = 0;  ///< of the control groups: 2, 1 (also where both are mounted), or 0 for none.
  std::optional<Index> memory_bytes;
  /// Bytes below that limit that are not in use; page cache, which the kernel reclaims, is not.
  std::optional<Index> memory_left_bytes;
  std::optional<double> cores;     ///< processor seconds per second.
  std::optional<Index> processes;  ///< processes and threads together.
};

/// Reads the limits of this process. `root` is put before /proc and /sys: empty but in tests. Never
/// fails: what is not there or not a number is no limit.
ControlGroupLimits control_group_limits(const std::string& root = "");

}  // namespace reshard
