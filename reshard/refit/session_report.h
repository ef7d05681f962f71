// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "reshard/base/ids.h"
#include "reshard/index/interval.h"

namespace reshard {

/// What one refit of a session did on this rank. Times are seconds.
struct SessionReport {
  std::int64_t version = -1;
  double seconds = 0;         ///< of all phases.
  double begin_seconds = 0;   ///< until all had come and agreed.
  double plan_seconds = 0;    ///< 0, but in a refit that had to plan anew.
  double before_seconds = 0;  ///< conversions of what is sent, where they are no part of the move.
  double move_seconds = 0;    ///< until everybody's bytes had arrived; with conversions on the way.
  /// Of move_seconds: until the sources could be read, and from when this rank's bytes were in
  /// place.
  double wait_seconds = 0, finish_seconds = 0;
  double after_seconds = 0;   ///< conversions of what came, where they are no part of the move.
  double check_seconds = 0;   ///< the proof.
  double commit_seconds = 0;  ///< until everybody had committed.
  Index bytes = 0;            ///< delivered to this rank's target, as it stores them.
  /// To and from other ranks, and from this rank to itself, as they travel.
  Index sent = 0, received = 0, copied = 0;
  Index copies = 0;    ///< memory copies of what moved, after coalescing.
  Index messages = 0;  ///< sent and received by this rank; 0 on the direct path.
  /// 10^9 bytes delivered here per second.
  double gigabytes_per_second() const {
    return seconds > 0 ? static_cast<double>(bytes) / seconds * 1e-9 : 0;
  }
};

/// Bytes to and from another rank in one refit, as they travel.
struct PeerVolume {
  Rank peer;
  Index sent = 0, received = 0;
  friend bool operator==(const PeerVolume&, const PeerVolume&) = default;
};

/// How many canonical tensors of a job go which way; on all ranks alike.
struct ConversionCounts {
  Index direct = 0;       ///< as they are, from memory to memory.
  Index at_sender = 0;    ///< quantised where they are sent from.
  Index at_receiver = 0;  ///< travel as plain values, and are quantised where they arrive.
  Index between = 0;      ///< whose blocks are cut on both sides: gathered on a rank each, first.
  Index fell_back = 0;    ///< of all: were to be quantised by the sender, but a block of theirs is
                          ///< cut there, or the target's blocks are not the tensor's.
  friend bool operator==(const ConversionCounts&, const ConversionCounts&) = default;
};

/// Bytes of a plain copy per second, in 10^9, read and written bytes counted once: the most that
/// moving weights inside this machine can reach with so many threads (as WorkerPool). Measured at
/// the first call for each number of threads (half a second, 512 MiB of memory), in the best of the
/// ways known (exec/plain_copy.h), then remembered; 0 where there is no memory for it. Any thread.
double copy_ceiling(int threads);

}  // namespace reshard
