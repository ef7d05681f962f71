// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/index/interval.h"

namespace reshard {

/// The bytes, copies and time of one refit.
struct RefitReport {
  double seconds = 0;
  Index bytes = 0;   ///< delivered to destination tensors.
  Index copies = 0;  ///< memory copies, after coalescing.
};

/// The bytes, messages and times of one refit on one rank.
struct RankReport : RefitReport {
  /// Bytes to other ranks, from other ranks, and within this rank, as the plan counts them: in the
  /// form in which values travel. On the direct path a rank "sends" what others read from its
  /// memory.
  Index sent = 0, received = 0, copied = 0;
  Index messages = 0;  ///< sent and received by this rank; 0 on the direct path.
  /// `seconds` in three parts: until sources can be read (direct: every rank is in run(); message:
  /// the first messages are complete); until this rank's bytes are in place; until all ranks' are.
  double wait_seconds = 0, move_seconds = 0, finish_seconds = 0;
};

}  // namespace reshard
