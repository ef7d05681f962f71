// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "reshard/exec/progress.h"
#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/refit_report.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/transport.h"

namespace reshard {

class TileConsumer;
class RangeWork;
class WorkerPool;

enum class RefitPath {
  /// Direct where every rank reaches all the memory it needs, unless that is not mapped and its
  /// runs
  /// are so short that messages cost far less; else message.
  automatic,
  direct,   ///< destinations copy from the sources' memory; an error where they cannot.
  message,  ///< pack, send, receive, unpack.
};

struct RankRefitOptions {
  RefitPath path = RefitPath::automatic;
  /// Most staging memory of this rank, at least 32 KiB; the least of all ranks counts.
  Index staging_bytes = Index{64} << 20;
  double seconds = 60;  ///< deadline of prepare(), and of each run().
  int threads = 1;      ///< that copy on the direct path; 0: one per core of this process.
  /// Message path: tensors' runs of so many bytes travel from and to where they lie; what is
  /// shorter is packed together. The most of all ranks counts.
  Index in_place_bytes = Index{64} << 10;
  Progress progress;  ///< of this rank's bytes; the job's are in ControlPlane::reported().
  /// Memory to stage messages in, borrowed as long as the refit lives; where it is too small, the
  /// refit has its own. Refits that run one after the other may be lent the same: eight chunks are
  /// enough for each, see staging_bound().
  std::span<std::byte> lent_staging = {};
  /// Threads instead of `threads` of its own, borrowed in the same way; null: none are lent.
  WorkerPool* lent_pool = nullptr;
  /// Takes what is delivered here, band by band, instead of target memory; null: nothing does.
  /// Needs `path = direct`, and peers' memory that is mapped. The target's addresses are names only
  /// then. Borrowed as long as the refit lives.
  TileConsumer* bands = nullptr;
  /// Message path: work of this rank on ranges of its source tensors that is done before bytes of
  /// them are packed, and on ranges of its target tensors once all that belongs there has come;
  /// items that nothing comes for included. Items of `before` that nobody needs are not run. The
  /// direct path does neither. Null: none. Borrowed as long as the refit lives.
  RangeWork* before = nullptr;
  RangeWork* after = nullptr;
};

/// The most staging memory that one refit uses for messages where its cap is `staging_bytes`.
Index staging_bound(Index staging_bytes);

/// One rank's part of a refit between ranks that are processes, or threads, over any transport.
///
/// Prepared once, run every step: run() plans nothing and allocates nothing per tensor. Collective:
/// every rank of the group prepares and runs together, in the same order; ranks outside both
/// layouts too. Used from one thread at a time. The planner, buffers, transport and control plane
/// must outlive it, the buffers also its last use by peers (ControlPlane::quiesce(), or
/// Transport::close()).
class RankRefit {
 public:
  /// Compares the plan's digest over all ranks before anything else, then agrees on a path: all
  /// ranks take the same. `source` and `target` may be null, or lack this rank. Errors: ranks
  /// disagree on the plan (both digests named) or on the path asked for, staging too small, memory
  /// missing (named), `unsupported` when the direct path was asked for and a rank cannot (named,
  /// with its reason); the transport's. An error on one rank is an error on all; what they do not
  /// find alike ends the group.
  static Result<RankRefit> prepare(const Planner& planner, const RankBuffers* source,
                                   const RankBuffers* target, Transport& transport,
                                   ControlPlane& control, RankRefitOptions options = {});
  RankRefit(RankRefit&&) noexcept;
  RankRefit& operator=(RankRefit&&) noexcept;
  ~RankRefit();

  /// Moves this rank's bytes; returns once every rank has its own, so that sources may be written
  /// again. Adds the bytes delivered here to ControlPlane::report() as it goes.
  ///
  /// On error every rank gets one, at most two seconds after the deadline; it says which rank was
  /// the reason, and that targets are undefined now: parts of them are new and parts old. The group
  /// is finished then (docs/threads.md), sources are unchanged, and peers have left this rank's
  /// memory unless the error says otherwise.
  Result<RankReport> run();

  /// "direct" or "message".
  std::string_view path() const;
  /// Why the path is "message" though it was not asked for: which rank cannot reach whose memory,
  /// that the transport cannot, or how much more reading it would cost. Else empty.
  const std::string& reason() const;
  /// Bytes of staging memory in use.
  Index staging_bytes() const;

 private:
  struct State;
  explicit RankRefit(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
