// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "reshard/refit/conversion/addresses.h"
#include "reshard/refit/conversion/job.h"
#include "reshard/refit/session.h"
#include "reshard/refit/session/begin.h"

namespace reshard {

/// What a session is, and the steps of its calls.
struct Session::State {
  State(Transport& data, ControlPlane& agreement, SessionSide from, SessionSide to,
        SessionOptions how);

  /// Collective: agrees on everything and makes the job. Errors: as Session::prepare().
  Result<> prepare();
  /// Collective: the four phases of a refit.
  Result<SessionReport> refit(std::int64_t version);
  Result<> verify();

  Rank me() const { return transport.rank(); }
  bool has_target() const;
  /// The copy of the target that the next refit writes.
  int next_copy() const;
  TargetVersion target_version() const;
  Deadline deadline() const;

  // session_prepare.cc
  BeginRecord record(BeginRecord::Kind kind, std::int64_t version) const;
  std::string trouble() const;
  std::uint64_t memory_digest(const Addresses& from, const Addresses& to) const;
  Result<> make_job();

  // session.cc
  Result<> begin(std::int64_t version, SessionReport& report);
  Result<> transfer_and_check(int copy, std::int64_t version, SessionReport& report);
  Result<> commit(int copy, std::int64_t version, SessionReport& report);
  Result<> enter(SessionPhase phase);
  /// Ends the group for everybody; the session can do nothing after.
  tl::unexpected<Error> finish(Error error);
  Error explained(Error error, std::int64_t version) const;

  Transport& transport;
  ControlPlane& control;
  SessionSide source, target;
  const SessionOptions options;
  PublishedVersion own_word;
  PublishedVersion* const published;
  Addresses source_addresses, target_addresses;
  BeginRecords agreed;            ///< by rank: what the job was made of.
  BeginRecords told;              ///< by rank: what was told last.
  std::vector<BeginWords> words;  ///< room for what is told next.
  std::unique_ptr<Job> job;
  std::uint64_t digest = 0;
  SessionPhase phase = SessionPhase::begin;
  bool is_recorded = false;  ///< what the targets hold was proved, and the job knows its prints.
  std::optional<Error> finished;  ///< why this session can do nothing any more.
};

}  // namespace reshard
