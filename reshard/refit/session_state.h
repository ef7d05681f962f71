// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/stopwatch.h"
#include "reshard/refit/conversion/job.h"
#include "reshard/refit/session.h"
#include "reshard/refit/session/addresses.h"
#include "reshard/refit/session/begin.h"
#include "reshard/refit/session/gpu_memory_watch.h"
#include "reshard/refit/session/job_targets.h"
#include "reshard/refit/session/source_snapshot.h"
#include "reshard/trace/refit_tracer.h"

namespace reshard {

/// The sides of a session on this rank, all that its refits need, and the phases of one.
struct Session::State {
  State(Transport& data, ControlPlane& agreement, SessionSide from, std::vector<SessionSide> to,
        SessionOptions how);
  /// Waits for a refit that is in progress.
  ~State();

  /// Collective. Agrees on everything and makes the jobs. Errors: as Session::prepare().
  Result<> prepare();
  Result<> verify();

  Rank me() const { return transport.rank(); }
  bool has_target() const;
  /// The copy of the target that the next refit writes.
  int next_copy() const;
  TargetVersion target_version() const;
  Deadline deadline() const;

  session::BeginRecord record(session::BeginRecord::Kind kind, std::int64_t version);
  std::string trouble() const;
  /// A digest of the targets' layouts and formats, in order.
  std::uint64_t digest_of_targets() const;
  /// A digest of all addresses as they are now.
  std::uint64_t memory_digest() const;
  /// The first address that is not the planned one; "" if all are.
  std::string address_change() const;
  Result<> make_jobs();
  void sum_up();
  /// Finds the memory behind the addresses, if these changed.
  void watch_memory();
  /// Why a refit cannot use that memory, or may not; "" if it can. `id` becomes that of the source.
  std::string memory_trouble(std::uint64_t& id);
  /// Why what is prepared cannot be used with the sides as they are; "" if it can.
  std::string job_trouble();

  /// Takes other sides; with options.snapshot, memory for what the source has.
  void take(SessionSide from, std::vector<SessionSide> to);
  void take_source(SessionSide from);
  /// Copies the sources, if the session takes snapshots. All ranks learn of an error by the next
  /// call.
  void take_snapshot(SessionReport& report);

  /// Collective. `sources_free`, which may be empty, is called when they are.
  Result<SessionReport> refit(std::int64_t version, SessionReport report,
                              const std::function<void()>& sources_free);
  bool in_progress() const { return pending && !pending->done(); }
  /// The error of a call that came meanwhile.
  static Error busy(std::string_view call);

  // The phases of a refit. Collective.
  Result<> begin(std::int64_t version, SessionReport& report);
  Result<> renew_memory();
  Result<> transfer_and_check(SessionReport& report, const std::function<void()>& sources_free);
  Result<> commit(std::int64_t version, SessionReport& report);
  Result<> enter(SessionPhase phase);
  /// Aborts the group; the session cannot be used afterwards.
  tl::unexpected<Error> finish(Error error);
  Error explained(Error error, std::int64_t version) const;
  RefitTracer* tracing() { return tracer ? &*tracer : nullptr; }
  /// Collective, after a refit. Gathers and writes its trace, if it is traced.
  Result<> finish_trace();

  /// A side on this rank, and what is remembered of its memory.
  struct Held {
    std::string name;                 ///< for texts: "source", "target", or "target 2" of several.
    SessionSide side;                 ///< the source's memory is the snapshot, if there is one.
    session::Addresses planned = {};  ///< that the jobs were made from.
    session::GpuMemoryWatch memory = {};
  };
  SessionSide& source() { return held.front().side; }
  const SessionSide& source() const { return held.front().side; }
  std::span<const Held> targets() const { return std::span(held).subspan(1); }

  Transport& transport;
  ControlPlane& control;
  std::vector<Held> held;    ///< the source, then each target.
  SessionSide given_source;  ///< as the caller passed it.
  std::unique_ptr<session::SourceSnapshot> snapshot, replaced_snapshot;
  session::GpuMemoryWatch given_memory;  ///< of given_source, if there is a snapshot.
  const SessionOptions options;
  PublishedVersion own_published;
  PublishedVersion* published;
  MemoryCheck check_memory;
  std::vector<MemoryCheck::Written> more_targets;  ///< for it: all but the first.
  bool is_watched = false;                         ///< Held::memory is of the sides as they are.
  session::BeginRecords agreed;                    ///< that the jobs were made from.
  session::BeginRecords received;                  ///< of the latest call.
  std::vector<session::BeginWords> exchange;       ///< reused by exchange_records().
  std::optional<RefitTracer> tracer;               ///< that the jobs' programs record to.
  /// One after another they bring all targets to a version. Empty: nothing is planned.
  std::vector<std::unique_ptr<conversion::Job>> jobs;
  std::vector<session::JobTarget> job_targets;  ///< by job.
  std::vector<PeerVolume> peers;                ///< of all jobs.
  ConversionCounts counts;
  std::uint64_t digest = 0;
  SessionPhase phase = SessionPhase::begin;
  bool is_recorded = false;  ///< the jobs recorded what the targets hold, after verifying it.
  Stopwatch pause;           ///< since readers of the target have to wait.
  std::optional<PendingRefit> pending;  ///< the latest.
  std::optional<Error> finished;        ///< why this session can no longer be used.
};

}  // namespace reshard
