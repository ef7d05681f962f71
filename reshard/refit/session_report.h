// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "reshard/base/ids.h"
#include "reshard/exec/refit_options.h"

namespace reshard {

/// The report of one refit of a session on this rank. Times are in seconds, sizes in bytes.
struct SessionReport {
  std::int64_t version = -1;
  double seconds = 0;        ///< all phases.
  double begin_seconds = 0;  ///< until all ranks had called refit() and agreed.
  double plan_seconds = 0;   ///< planning anew; 0 if nothing changed.
  double move_seconds =
      0;  ///< until all ranks' bytes had arrived, conversions on the way included.
  /// Parts of move_seconds: until the sources could be read; and, once this rank's bytes were in
  /// place, until all ranks' were.
  double wait_seconds = 0, finish_seconds = 0;
  double check_seconds = 0;   ///< verification.
  double commit_seconds = 0;  ///< until all ranks had committed.
  /// Before all phases, and outside `seconds`: copying the sources, if the session takes snapshots.
  double snapshot_seconds = 0;
  /// The time in which readers of this rank's target had to wait: in place, from the first change
  /// until the new version was whole and on_phase(committed) had returned; doubled, for
  /// on_phase(committed) alone, where readers go to the other copy. 0 without a target.
  double pause_seconds = 0;
  Index bytes = 0;  ///< delivered to this rank's target, in the form in which it stores them.
  /// To other ranks, from other ranks, and within this rank, in the form in which bytes travel.
  Index sent = 0, received = 0, copied = 0;
  Index copies = 0;    ///< memory copies of the move, after coalescing.
  Index messages = 0;  ///< sent and received by this rank; 0 on the direct path.
  /// Adds what a refit moved; `delivers`: to the target, and not to staging.
  void add(const RankReport& moved, bool delivers);
  /// The bytes that this rank moved: delivered to its target or, if it has none, sent.
  Index moved() const { return bytes > 0 ? bytes : sent; }
  /// The part of move_seconds in which this rank's bytes moved. Without a target: in which
  /// anybody's did, for others read them.
  double transfer_seconds() const;
  /// 10^9 bytes of moved() per second of transfer_seconds().
  double gigabytes_per_second() const;
};

/// Bytes to and from one other rank in each refit, in the form in which they travel.
struct PeerVolume {
  Rank peer;
  Index sent = 0, received = 0;
  friend bool operator==(const PeerVolume&, const PeerVolume&) = default;
};

/// How many canonical tensors take which route; identical on all ranks.
struct ConversionCounts {
  Index direct = 0;       ///< move unchanged or cast, from memory to memory.
  Index at_sender = 0;    ///< converted by the sender.
  Index at_receiver = 0;  ///< converted by the receiver.
  Index between = 0;    ///< gathered whole on one rank and quantised there: both sides cut blocks.
  Index fell_back = 0;  ///< of all: the sender should have quantised them, but it cuts a block, or
                        ///< the target's blocks are not those of the canonical tensor.
  /// Adds the counts of another target: a tensor counts once for each.
  ConversionCounts& operator+=(const ConversionCounts& more);
  friend bool operator==(const ConversionCounts&, const ConversionCounts&) = default;
};

/// The speed of a plain copy with `threads` (as WorkerPool), in 10^9 bytes copied per second: the
/// most that moving weights inside this machine can reach. The first call for each number of
/// threads measures it in the fastest way known (exec/plain_copy.h), with half a second and 512 MiB
/// of memory; later calls return the same number. 0 if memory is short. Thread-safe.
double copy_ceiling(int threads);

}  // namespace reshard
