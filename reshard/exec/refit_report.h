// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/index/interval.h"

namespace reshard {

/// What one refit did.
struct RefitReport {
  double seconds = 0;
  Index bytes = 0;   ///< delivered to destination tensors.
  Index copies = 0;  ///< memory copies after coalescing.
};

/// What one refit did on one rank.
struct RankReport : RefitReport {
  /// Bytes to and from other ranks, and from this rank to itself, as the plan counts them: in the
  /// form in which values travel. On the direct path a rank sends what others take from its memory.
  Index sent = 0, received = 0, copied = 0;
  Index messages = 0;  ///< sent and received by this rank; 0 on the direct path.
  /// Where the seconds went: until the sources could be read (direct: every rank has come; message:
  /// the first message has), until this rank's bytes were in place, until everybody's were.
  double wait_seconds = 0, move_seconds = 0, finish_seconds = 0;
};

}  // namespace reshard
