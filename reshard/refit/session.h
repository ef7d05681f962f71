// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/exec/refit_options.h"
#include "reshard/plan/relays/relays.h"
#include "reshard/refit/pending_refit.h"
#include "reshard/refit/session_report.h"
#include "reshard/refit/session_side.h"
#include "reshard/trace/trace_options.h"
#include "reshard/trace/why_slow.h"
#include "reshard/transport/transport.h"

namespace reshard {

enum class Buffering : std::uint8_t {
  in_place,  ///< the target has one copy, which is torn during a refit.
  doubled,   ///< two copies: a refit writes one while readers use the other; the commit swaps them.
};
enum class VerifyMode : std::uint8_t {
  never,   ///< only Session::verify() verifies.
  always,  ///< every refit verifies before it commits.
};
/// Which side quantises and dequantises.
enum class ConversionSide : std::uint8_t {
  receiver,  ///< what the source stores travels: plain values, or data and scales.
  sender,  ///< the sender converts. It cannot quantise a tensor whose blocks are not whole at every
           ///< sender: plain values of that tensor travel.
};

/// The phase of a refit that a rank enters.
enum class SessionPhase : std::uint8_t {
  begin,      ///< nothing has happened yet.
  transfer,   ///< all ranks agree; an in-place target is marked torn; no byte has moved.
  check,      ///< every byte is in place on every rank.
  commit,     ///< this rank has verified its bytes.
  committed,  ///< this rank's version is whole; other ranks may still be committing.
};
/// "begin", "transfer", ...
std::string_view name(SessionPhase phase);

struct SessionOptions {
  /// Path, threads, and the deadline of each step. `refit.staging_bytes` also bounds the memory
  /// that conversions need.
  RankRefitOptions refit;
  Buffering buffering = Buffering::in_place;
  VerifyMode verify = VerifyMode::never;
  ConversionSide convert = ConversionSide::receiver;
  /// Who sends. RouteMode::automatic: also ranks of the target relay what they have received to
  /// ranks on other hosts, if the busiest host's network then carries at least a tenth less. Not
  /// with a quantised side, nor with RefitPath::direct: then as RouteMode::direct. docs/routes.md.
  RouteMode routes = RouteMode::direct;
  /// Any name of this rank's host, for RouteMode::automatic: ranks that pass equal names share a
  /// network interface. Empty: as the operating system identifies the host.
  std::string host = {};
  std::set<std::string> ignore;     ///< canonical names of tensors that one side may lack.
  std::set<std::string> only = {};  ///< canonical names of the tensors to move; empty: all.
  /// True: refit() plans anew if layouts or addresses changed since prepare(). False: it is an
  /// error.
  bool replan = false;
  /// True: each refit first copies this rank's sources to host memory that the session owns, as
  /// large as they are, and moves the copy; they may be written as soon as refit_async() returns.
  /// Each rank decides for itself.
  bool snapshot = false;
  /// If `trace.path` is not empty, which must be so on all ranks or on none: every refit() is
  /// traced, and ends with one more collective step, in which rank 0 writes the trace of all ranks.
  /// A refit that failed leaves its events in "PATH.rankN" on each rank. docs/trace.md.
  TraceOptions trace;
  /// Called when this rank enters a phase, in the thread that calls refit(): for example, to put an
  /// engine to sleep before its memory changes. An error that it returns becomes the error of
  /// refit() on all ranks. Must not call the session.
  std::function<Result<>(SessionPhase)> on_phase = nullptr;
};

/// Keeps a trainer and an inference engine in step: all ranks prepare it once, then call refit()
/// after each training step. refit() plans nothing and allocates nothing per tensor. See
/// docs/session.md.
///
/// Every rank of the group makes the collective calls, in the same order, even if it holds no
/// weights. One thread at a time; target_version() from any thread.
class Session {
 public:
  /// Collective. Plans, shares memory, allocates all that refits need, and checks that all ranks
  /// agree on layouts, formats and options. The transport, the control plane (of the same group)
  /// and the sides' memory are borrowed and must outlive the session.
  ///
  /// Errors: ranks differ (the rank and the difference are named); a layout or memory is missing;
  /// MemoryCheck refuses a rank's memory; the layouts are of different models; one side lacks a
  /// tensor that `ignore` does not name (named); Buffering::doubled without `back`; those of
  /// RankRefit::prepare(). An error on one rank is an error on all. An error that is identical on
  /// all ranks leaves the group usable; any other error aborts it.
  static Result<Session> prepare(Transport& transport, ControlPlane& control, SessionSide source,
                                 SessionSide target, SessionOptions options = {});
  /// The same with several targets, such as engines in different roles, in layouts and formats of
  /// their own: each refit brings all of them to a version, with one begin and one commit. Every
  /// rank passes all targets, in the same order; the ones that it has a part of share its version.
  /// Plain targets on different ranks that store each tensor in the same form are one plan, so that
  /// they receive at the same time and relay to each other; others follow one after another, and
  /// share the staging memory. docs/targets.md.
  static Result<Session> prepare(Transport& transport, ControlPlane& control, SessionSide source,
                                 std::vector<SessionSide> targets, SessionOptions options = {});
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// Collective. Brings every rank's target to `version`: begin, transfer, check, commit. All ranks
  /// pass the same version; it must be above every target's. Sources must not be written meanwhile.
  /// Returns once every rank has committed.
  ///
  /// Errors, on all ranks. If begin fails (versions differ, layouts or addresses changed, see
  /// update(), or MemoryCheck refuses a rank's memory as it is now), nothing has happened and the
  /// session stays usable. After a later error an in-place target is torn, and a doubled one still
  /// has its old version whole. A failed verification (`corrupt`) leaves the group usable; any
  /// other error aborts it: make a new group and prepare a session with the same PublishedVersions.
  /// If a rank dies in the commit itself, some ranks may be at the new version and others not, as
  /// their PublishedVersions say (docs/versions.md).
  Result<SessionReport> refit(std::int64_t version);

  /// The same in a thread of its own: returns at once, or, with options.snapshot, when the snapshot
  /// is complete. Until the refit is done, neither the session nor its group takes other calls,
  /// target_version() excepted; `on_phase` and progress are called in that thread, and `on_end`,
  /// if given, at its end. Sources must not be written until sources_free() of the result.
  ///
  /// Errors of this rank alone, which ends the group: a refit is in progress; the system gives no
  /// thread. All others are those of the result.
  Result<PendingRefit> refit_async(std::int64_t version, std::function<void()> on_end = nullptr);

  /// Replaces this rank's sides: other layouts or addresses. Not collective. The next refit() tells
  /// all ranks of the change, and plans anew or fails, as options.replan says. The session keeps
  /// its PublishedVersion; `target.published` is ignored. The buffers that were replaced must stay
  /// until a refit() has planned anew.
  void update(SessionSide source, SessionSide target);
  /// The same with several targets.
  void update(SessionSide source, std::vector<SessionSide> targets);

  /// The version of this rank's target; `empty` if the rank has none. Any thread.
  TargetVersion target_version() const;

  /// Collective. Verifies the targets: their fingerprints must equal those of the last commit (if
  /// options.verify is always) or of the sources (as they are now; of a snapshot, the last one),
  /// converted tensors must be what
  /// their sources convert to, and replicas must agree. Errors: `corrupt` names the tensor;
  /// `invalid_argument` if layouts, addresses or memory are no longer what the last refit() used,
  /// on any rank: both leave the group usable; those of rank_fingerprints().
  Result<> verify();

  /// The bytes that this rank sends and receives in each refit, ascending by peer.
  const std::vector<PeerVolume>& peers() const;
  /// "direct", "message" or "mixed", as RankRefit::path(); "none" if the last refit() could not
  /// plan anew.
  std::string_view path() const;
  /// Why the path is "message" or "mixed" although it was not asked for; otherwise empty.
  const std::string& reason() const;
  /// Digest of all ranks' layouts, formats, options and addresses. Identical on all ranks; changes
  /// whenever any of these changes.
  std::uint64_t digest() const;
  /// Bytes of staging memory that the session holds on this rank, staging tensors included.
  Index staging_bytes() const;
  /// The time breakdown from the trace of the last successful refit(); identical on all ranks. Null
  /// if nothing was traced.
  const WhySlow* why_slow() const;
  /// How many tensors take which route; of several targets, a tensor counts once for each.
  const ConversionCounts& conversions() const;
  /// The bytes over network interfaces, if RouteMode::automatic could choose; the same on all
  /// ranks. Null: all routes are direct. `used` says whether ranks relay.
  const RelaySummary* relays() const;

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
