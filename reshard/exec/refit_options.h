// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "reshard/exec/progress.h"
#include "reshard/index/interval.h"

namespace reshard {

enum class RefitPath {
  /// For each pair of ranks: direct if the receiver can reach the sender's memory; but message if
  /// that memory is not mapped and its runs are so short, or its values so converted, that messages
  /// cost far less.
  automatic,
  direct,   ///< destinations copy from the sources' memory; an error if a rank cannot.
  message,  ///< pack, send, receive, unpack.
};

struct RankRefitOptions {
  RefitPath path = RefitPath::automatic;
  /// The most staging memory of this rank, in bytes; at least 32 KiB. The minimum over all ranks
  /// applies.
  Index staging_bytes = Index{64} << 20;
  double seconds = 60;  ///< deadline of prepare(), and of each run().
  int threads = 1;      ///< that copy on the direct path; 0: one per core of this process.
  /// Message path: runs of at least this many bytes are sent and received in place; shorter ones
  /// are packed together. 0: 64 KiB, or 1 MiB over a transport that moves messages in rounds, which
  /// takes those between two ranks one after another (NCCL). The maximum over all ranks applies.
  Index in_place_bytes = 0;
  /// Thread blocks that run on this rank's GPU at a time; 0: as many as it holds. Fewer leave
  /// multiprocessors to kernels that run meanwhile.
  int most_gpu_blocks = 0;
  Progress progress;  ///< of this rank's bytes; ControlPlane::reported() has the whole group's.
};

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
