// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/stopwatch.h"
#include "reshard/refit/conversion/job.h"
#include "reshard/refit/session.h"
#include "reshard/refit/session/addresses.h"
#include "reshard/refit/session/begin.h"
#include "reshard/refit/session/gpu_memory_watch.h"
#include "reshard/refit/session/source_snapshot.h"
#include "reshard/trace/refit_tracer.h"

namespace reshard {

/// The sides of a session on this rank, all that its refits need, and the phases of one.
struct Session::State {
  State(Transport& data, ControlPlane& agreement, SessionSide from, SessionSide to,
        SessionOptions how);
  /// Waits for a refit that is in progress.
  ~State();

  /// Collective. Agrees on everything and makes the job. Errors: as Session::prepare().
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
  std::uint64_t memory_digest(const session::Addresses& from, const session::Addresses& to) const;
  Result<> make_job();
  /// Finds the memory behind the addresses, if these changed.
  void watch_memory();
  /// Why a refit cannot use that memory, or may not; "" if it can. `id` becomes that of the source.
  std::string memory_trouble(std::uint64_t& id);
  /// Why what is prepared cannot be used with the sides as they are; "" if it can.
  std::string job_trouble();

  /// Takes other sides; with options.snapshot, memory for what the source has.
  void take(SessionSide from, SessionSide to);
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

  Transport& transport;
  ControlPlane& control;
  SessionSide source, target;  ///< the source's memory is the snapshot, if there is one.
  SessionSide given_source;    ///< as the caller passed it.
  std::unique_ptr<session::SourceSnapshot> snapshot, replaced_snapshot;
  session::GpuMemoryWatch given_memory;  ///< of given_source, if there is a snapshot.
  const SessionOptions options;
  PublishedVersion own_published;
  PublishedVersion* const published;
  session::Addresses source_addresses, target_addresses;
  session::GpuMemoryWatch source_memory, target_memory;
  MemoryCheck check_memory;
  bool is_watched = false;                    ///< the two above are of the sides as they are.
  session::BeginRecords agreed;               ///< that the job was made from.
  session::BeginRecords received;             ///< of the latest call.
  std::vector<session::BeginWords> exchange;  ///< reused by exchange_records().
  std::optional<RefitTracer> tracer;          ///< that the job's programs record to.
  std::unique_ptr<conversion::Job> job;
  std::uint64_t digest = 0;
  SessionPhase phase = SessionPhase::begin;
  bool is_recorded = false;  ///< the job recorded what the targets hold, after verifying it.
  Stopwatch pause;           ///< since readers of the target have to wait.
  std::optional<PendingRefit> pending;  ///< the latest.
  std::optional<Error> finished;        ///< why this session can no longer be used.
};

}  // namespace reshard
