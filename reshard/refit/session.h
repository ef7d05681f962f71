// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/exec/rank_refit.h"
#include "reshard/refit/session/side.h"
#include "reshard/refit/session_report.h"

namespace reshard {

enum class Buffering : std::uint8_t {
  in_place,  ///< one copy, torn while it is written.
  doubled,   ///< two copies: one is written while the other stays whole, then they change places.
};
enum class VerifyMode : std::uint8_t {
  never,   ///< only when verify() is called.
  always,  ///< before each commit.
};
/// Where plain values become quantised ones.
enum class ConversionSide : std::uint8_t {
  receiver,  ///< values travel.
  sender,    ///< data and scales travel, of tensors whose blocks are whole at every sender; of the
             ///< others values.
};

/// How far one rank is in a refit.
enum class SessionPhase : std::uint8_t {
  begin,      ///< nothing happened yet.
  transfer,   ///< all agree; an in-place target is marked torn; no byte has moved.
  check,      ///< every byte is where it belongs, on every rank.
  commit,     ///< this rank's check was good.
  committed,  ///< this rank's version is whole; others' may still be on their way.
};
/// "begin", "transfer", ...
std::string_view name(SessionPhase phase);

struct SessionOptions {
  RankRefitOptions refit;  ///< path, staging and landing memory, deadline of each step, threads.
  Buffering buffering = Buffering::in_place;
  VerifyMode verify = VerifyMode::never;
  ConversionSide convert = ConversionSide::receiver;
  std::set<std::string> ignore;  ///< canonical names that one side may lack.
  /// Plan anew where shapes, addresses or layouts changed since prepare(); else that is an error.
  bool replan = false;
  /// Told when this rank comes to a phase, in refit()'s thread: to put an engine to sleep before
  /// its memory changes, say. An error that it returns is the refit's, on all ranks. Must not call
  /// the session.
  std::function<Result<>(SessionPhase)> on_phase = nullptr;
};

/// What an RL framework holds between steps: prepared once by all ranks together, then one refit()
/// a step, which plans nothing and allocates nothing per tensor. See docs/session.md.
///
/// Collective calls are made by every rank of the group, in the same order, ranks that hold nothing
/// included. One thread at a time; target_version() from any thread.
class Session {
 public:
  /// Collective. Plans, shares memory, allocates what is needed; all ranks agree on layouts,
  /// formats and options. Transport, control plane (of one group) and the sides' memory are
  /// borrowed and must outlive the session.
  ///
  /// Errors, an error on one rank being an error on all: ranks that differ (the rank and what
  /// differs are named); a layout or memory that is missing; layouts of different models; a tensor
  /// on one side only that is not ignored (named); two copies without `back`; those of
  /// RankRefit::prepare(). What all ranks find alike leaves the group usable, anything else ends
  /// it.
  static Result<Session> prepare(Transport& transport, ControlPlane& control, SessionSide source,
                                 SessionSide target, SessionOptions options = {});
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  /// Collective: begin, transfer, check, commit. `version` is the same on all ranks, and above what
  /// any target holds. Sources are not written meanwhile. Returns once every rank has committed.
  ///
  /// Errors on all ranks. At begin (versions or digests differ, see update()) nothing has happened
  /// and the session can be used as before. Later targets in place are torn and of two copies the
  /// old one is whole; a failed proof (`corrupt`) leaves the group usable, anything else ends it:
  /// make a new one and prepare anew with the same words. A rank that dies in the commit itself
  /// leaves some ranks at the new version and some where they were, as their words say
  /// (docs/session.md).
  Result<SessionReport> refit(std::int64_t version);

  /// Registers this rank's sides anew: other layouts, other addresses. Not collective; what changed
  /// is told to all by the next refit(), which plans anew or is an error, as options.replan says.
  /// The word stays as it was.
  void update(SessionSide source, SessionSide target);

  /// What this rank's target holds; `empty` where it has none. From any thread.
  TargetVersion target_version() const;

  /// Collective. Fingerprints of what the targets hold: equal to those of the last commit when
  /// options.verify is always, else to the sources' as they are now, and what is converted is what
  /// they convert to; and replicas agree. Errors:
  /// `corrupt` names the tensor (the group can still be used); those of rank_fingerprints().
  Result<> verify();

  /// What this rank sends and receives in every refit, ascending by peer.
  const std::vector<PeerVolume>& peers() const;
  /// "direct" or "message".
  std::string_view path() const;
  /// Why the path is "message" though it was not asked for; else empty.
  const std::string& reason() const;
  /// Of layouts, formats, options and addresses of all ranks: the same on all, another after
  /// anything changed.
  std::uint64_t digest() const;
  /// Bytes of memory that the session holds on this rank, staging and landing.
  Index staging_bytes() const;
  /// How many tensors take which way.
  const ConversionCounts& conversions() const;

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace reshard
