// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "reshard/exec/rank_buffers.h"
#include "reshard/exec/refit_options.h"
#include "reshard/plan/planner.h"
#include "reshard/transport/transport.h"

namespace reshard {

class ConversionVerifier;
struct RankRefitHooks;

/// One rank's part of a refit between ranks that are processes, or threads, over any transport.
/// Ranks of one host with GPU memory read each other's (CUDA IPC), whatever the transport.
///
/// Prepared once, run every step: run() plans nothing and allocates nothing per tensor. Both calls
/// are collective: every rank of the group makes them in the same order, ranks outside both layouts
/// included. Not thread-safe. The planner, buffers, transport and control plane must outlive this
/// object; the buffers must also outlive the last access by peers (ControlPlane::quiesce() or
/// Transport::close()).
class RankRefit {
 public:
  /// Compares the plan's digest over all ranks, then agrees on the path. `source` and
  /// `target` may be null, or lack this rank, if the rank holds nothing of that side.
  ///
  /// Errors: ranks disagree on the plan (both digests are named) or on the path they ask for;
  /// staging too small; memory missing (named); `unsupported` if the direct path was asked for and
  /// a rank cannot take it (named, with the reason); the transport's. An error on one rank is an
  /// error on all. An error that is identical on all ranks leaves the group usable; any other error
  /// aborts it.
  static Result<RankRefit> prepare(const Planner& planner, const RankBuffers* source,
                                   const RankBuffers* target, Transport& transport,
                                   ControlPlane& control, const RankRefitOptions& options = {});
  /// Internal: the same with what a session plugs in (rank_refit_hooks.h).
  static Result<RankRefit> prepare(const Planner& planner, const RankBuffers* source,
                                   const RankBuffers* target, Transport& transport,
                                   ControlPlane& control, const RankRefitOptions& options,
                                   const RankRefitHooks& hooks);
  RankRefit(RankRefit&&) noexcept;
  RankRefit& operator=(RankRefit&&) noexcept;
  ~RankRefit();

  /// Moves this rank's bytes. Returns once every rank has its own, so sources may be written again.
  /// Adds the bytes delivered to this rank to ControlPlane::report() as it proceeds.
  ///
  /// An error on one rank is an error on all, at most two seconds after the deadline. The error
  /// names the rank that caused it. Targets are then undefined: parts are new and parts are old.
  /// Sources are unchanged. The group is aborted (docs/threads.md), and peers no longer access this
  /// rank's memory unless the error says so.
  ///
  /// `observer` is internal, for refits with conversions (rank_refit_hooks.h): nothing is converted
  /// and no target of a conversion is written; the observer sees all rows instead.
  Result<RankReport> run(ConversionVerifier* observer = nullptr);

  /// Collective, before a run(): memory of GPUs behind the addresses of sources may be other than
  /// it was (an allocator unmapped it and mapped other memory, or freed it and allocated it again).
  /// Ranks that read it open the new memory; the plan stays. Errors: as run(), and `unsupported` if
  /// new memory cannot be shared or opened; the group is aborted.
  Result<> renew_memory();

  /// "direct" or "message"; "mixed" if some pairs of ranks read memory and others send messages.
  /// The same on all ranks.
  std::string_view path() const;
  /// Why the path is "message" or "mixed" although it was not asked for: the rank that cannot reach
  /// memory, a transport that cannot, or how much more reading would cost. Otherwise empty.
  const std::string& reason() const;
  /// Staging memory in use. Bytes.
  Index staging_bytes() const;

 private:
  struct State;
  explicit RankRefit(std::unique_ptr<State> state);
  void log_prepared(double seconds) const;
  std::unique_ptr<State> state_;
};

}  // namespace reshard
