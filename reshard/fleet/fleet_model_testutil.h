// SPDX-License-Identifier: Apache-2.0
// A model of a fleet, to search all of its states: that of the server (FleetState), of each
// process, and the messages between them, which arrive in order.
//
// Processes do what a member does: say that they are ready, take part in rounds, report. A refit is
// modelled by the steps that others can see: a rank joins the group, tears its target once all have
// joined, commits once all have torn theirs. A rank fails if another one of its group died or
// failed, if it waits for one that was stopped, if the server cancels what it waits for, or by
// itself.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "reshard/fleet/fleet_state.h"

namespace reshard::fleet {

/// The processes of a fleet, and the most faults of a run.
struct ModelFleet {
  struct Place {
    std::string unit;
    Role role = Role::engine;
    int rank = 0, size = 1;
    bool late = false;  ///< joins at any time; others have joined at first.
  };
  std::vector<Place> places;
  bool doubled = false;  ///< two copies of each target.
  int deaths = 0, stops = 0, failures = 0;
  bool restarts = false;  ///< a process that died may come again, without weights.
  std::int64_t versions = 2;
};

struct ModelMessage {
  enum class Kind : std::uint8_t { ready, publish, report, lost };
  Kind kind = Kind::ready;
  std::int64_t version = kNoVersion, round = 0;
  bool has = false;
};

struct ModelProcess {
  enum class Life : std::uint8_t { outside, alive, stopped, dead };
  enum class Stage : std::uint8_t { busy, waits, ordered, grouped, torn, committed, reported };
  Life life = Life::outside;
  Stage stage = Stage::busy;
  MemberId id{-1};
  Action order = {};
  bool cancelled = false, failed = false;  ///< in the round of its order.
  std::int64_t next = 1;                   ///< trainers: the version to publish.
  int rejected = 0;
  /// Engines: the version that each copy holds, kNoVersion if a mixture or nothing.
  std::int64_t copies[2] = {kNoVersion, kNoVersion};
  std::int64_t whole = kNoVersion;  ///< that the session has published; its copy is `buffer`.
  int buffer = 0;
  std::int64_t confirmed = kNoVersion;  ///< that its user was told, in `confirmed_buffer`.
  int confirmed_buffer = 0;
  std::deque<Action> inbox = {};
  std::deque<ModelMessage> outbox = {};

  /// The version that readers may take for whole.
  std::int64_t told(bool doubled) const {
    return doubled || whole == confirmed ? confirmed : kNoVersion;
  }
  /// The version that it holds if the one of this round is not confirmed.
  std::int64_t kept() const {
    return copies[confirmed_buffer] == confirmed ? confirmed : kNoVersion;
  }
};

struct ModelWorld {
  FleetState server;
  std::vector<ModelProcess> processes;
  std::set<std::int64_t> aborted;  ///< rounds whose group has ended.
  int deaths, stops, failures;
  std::int64_t ids = 0;

  std::string text() const;
};

/// The outcome of a search.
struct ModelResult {
  std::size_t states = 0, ends = 0;
  std::string violation;  ///< "" if there is none; else what is wrong, and in which state.
};

/// Searches all states. Gives up, as a violation, after `most` states.
ModelResult search(const ModelFleet& fleet, std::size_t most);

}  // namespace reshard::fleet
