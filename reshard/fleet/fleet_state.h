// SPDX-License-Identifier: Apache-2.0
// The decisions of the process that serves a fleet, without sockets and clocks: events of members
// in, actions out.
//
// A fleet is units: at most one trainer, and engines. A unit is some processes, its members, that
// hold one layout together. It is *present* while all of them are joined and *ready* while all of
// them wait for an order. A unit *holds* a version if each of its members has it whole.
//
// A *round* brings one version from one unit, the source, to others, the targets: their members
// make a group, whose number is the *epoch*, and refit. A round with the source, targets and
// members of the one before, which succeeded, keeps its epoch, so that members use the group and
// the session that they have. Once a member is lost or reports an error, the others are told
// (`cancel`). A round is over once each member has reported or is lost; members that do not report
// in time are dropped. Then each target that has the version on all members is told so (`confirm`);
// the others keep what they held before, or nothing.
//
// Invariants, which fleet_model_test.cc checks in every reachable state of a small fleet:
//   1. A version is confirmed to a unit only if all of its members have it whole.
//   2. One round at a time; a member gets no order before it has reported on the last one.
//   3. Whenever something waits, an event is to come: a message or the loss of a member, or the
//      time that next_time() says.
//   4. When no event is left, every ready engine holds the newest version that a ready unit holds,
//      but for targets whose rounds failed kMaxTries times with nobody lost.
//   5. Time drops nobody but who has stopped, or waits for a process that has.
//   6. The number of rounds is finite if the numbers of joins and of published versions are.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/base/result.h"

namespace reshard::fleet {

/// A member: one process. Never used again for another one.
using MemberId = StrongInt<struct MemberTag, std::int64_t>;
/// Time since any fixed moment; never decreases.
using Time = std::chrono::nanoseconds;

inline constexpr std::int64_t kNoVersion = -1;
/// Rounds of a version that one target takes part in, that fail on all targets, and in and since
/// which nobody was lost.
inline constexpr int kMaxTries = 2;

enum class Role : std::uint8_t {
  trainer,  ///< publishes versions, and holds one from then until it is released.
  engine,   ///< takes versions, and is a source of the one that it holds.
};

/// A member's place in a unit.
struct JoinRequest {
  std::string unit;  ///< 1 to 64 letters, digits, '-', '_', '.'.
  Role role = Role::engine;
  int rank = 0, size = 1;             ///< in the unit, and of it; at most kMaxUnitSize.
  std::string layout;                 ///< of the unit; equal on all its members, and not read here.
  std::int64_t version = kNoVersion;  ///< that an engine's member holds whole.
  std::string address = {};           ///< where it listens for groups of which it is rank 0.
};
inline constexpr int kMaxUnitSize = 65536;

/// A unit in a round.
struct Participant {
  std::string unit;
  std::string layout;
  int first = 0;  ///< the rank of its first member in the group.
  int size = 1;
  bool is_source = false;
  friend bool operator==(const Participant&, const Participant&) = default;
};

/// A decision: what a member is to be told.
struct Action {
  enum class Kind : std::uint8_t {
    refuse,   ///< it has not joined; `text` says why. To be disconnected.
    order,    ///< take part in a round.
    cancel,   ///< the round cannot succeed: do not wait for others any longer, and report.
    confirm,  ///< an engine: its unit holds `version`. It is not ready until it says so again.
    release,  ///< the trainer: its weights may change. `text`: why not all engines have them, or
              ///< "".
    reject,   ///< the same, but the version cannot be given to all; `code` and `text` say why.
    drop,     ///< did not report in time. To be disconnected.
  };
  Kind kind = Kind::order;
  MemberId to = {};
  std::int64_t version = kNoVersion;
  // Of an order:
  std::int64_t round = 0, epoch = 0;
  int rank = 0;              ///< of the member in the group.
  std::string address = {};  ///< where rank 0 of the group listens.
  std::vector<Participant> participants = {};
  // Of release and reject:
  Code code = Code::aborted;              ///< of a reject.
  std::vector<std::string> holders = {};  ///< names of the engines that hold `version`.
  std::string text = {};
};

/// Limits of waits.
struct Limits {
  Time gather = std::chrono::seconds(60);  ///< from a publication until engines are ready.
  Time round = std::chrono::seconds(180);  ///< from an order until the first report.
  Time report = std::chrono::seconds(3);   ///< from the first report or loss until the last report.
};

/// Used by one thread at a time. Members passed to its functions, join() aside, are those that have
/// joined and are not lost; all others are ignored. `now` is the time of the event.
class FleetState {
 public:
  explicit FleetState(Limits limits) : limits_(limits) {}

  /// A process asks to be a member. Refused: a name, rank or size that is invalid; a seat that is
  /// taken; another role, size or layout than the unit's other members; a second trainer.
  std::vector<Action> join(MemberId member, const JoinRequest& request, Time now);
  /// An engine's member waits for an order or a confirmation.
  std::vector<Action> ready(MemberId member, Time now);
  /// A trainer's member holds `version` until it is released. The round begins when all of its
  /// members have published and all present engines are ready, of which there are `engines` or
  /// more, or after Limits::gather with those that are.
  std::vector<Action> publish(MemberId member, std::int64_t version, int engines, Time now);
  /// A member's part of a round is over. `has`: it has the version whole; a source's member: its
  /// part succeeded. `keeps`: the version that an engine's member holds if its unit does not get
  /// this one, or kNoVersion. `error`: why it failed; may be "".
  std::vector<Action> report(MemberId member, std::int64_t round, bool has, std::int64_t keeps,
                             const std::string& error, Time now);
  /// The connection of a member has ended.
  std::vector<Action> lose(MemberId member, Time now);
  /// It is next_time().
  std::vector<Action> tick(Time now);
  /// When tick() is due; none: never.
  std::optional<Time> next_time() const;

  /// The state in words, one line a unit; equal for equal states.
  std::string text() const;
  /// True while a round is in progress.
  bool in_round() const { return round_.has_value(); }

 private:
  struct Seat {
    std::optional<MemberId> member;
    bool ready = false;
    std::int64_t held = kNoVersion;       ///< engines: whole and confirmed.
    std::int64_t published = kNoVersion;  ///< trainers, while ready.
    std::string address;
    // In a round:
    bool pending = false, has = false;
    std::int64_t keeps = kNoVersion;
  };
  struct Unit {
    std::string name;
    Role role = Role::engine;
    std::string layout = {};
    std::vector<Seat> seats = {};
    std::int64_t incarnation = 0;  ///< of its present members.
    std::int64_t tried = kNoVersion;
    int tries = 0;     ///< of version `tried` that failed, since a member of any unit was lost.
    bool late = true;  ///< became present after the trainer had published.
    bool present() const;
    bool ready() const;
    std::int64_t held() const;
    std::int64_t published() const;
    /// A round of the version has failed.
    void count(std::int64_t version);
  };
  struct Round {
    std::int64_t version;
    std::vector<std::size_t> units;  ///< the source first.
    Time end;                        ///< for members that have not reported.
    bool any_lost = false, ending = false, cancelled = false;
    std::string error = {};  ///< the first one reported.
  };
  /// The incarnations of the units of a round, the source first, which decide the epoch.
  using Composition = std::vector<std::int64_t>;

  Seat* seat_of(MemberId member, Unit** unit = nullptr);
  std::string trouble(const JoinRequest& request) const;
  /// The unit of this name; a new one, or one without members, becomes as the request says.
  Unit& unit_for(const JoinRequest& request);
  void empty_seat(Unit& unit, Seat& seat);
  /// The trainer, if all of its members have published the same version.
  Unit* publisher();
  /// Releases the trainer's members that have published; `text` is the action's.
  void release(const std::string& text);
  /// The same for a publication that failed.
  void reject(const Error& why);
  void end_publication(const Action& said);
  void forget_absent_units();
  /// True if the unit is an engine that is to get the version.
  bool lacks(const Unit& unit, std::int64_t version) const;

  void schedule(Time now);
  void schedule_published(Unit& trainer, Time now);
  void schedule_catch_up(Time now);
  std::string left_behind(std::int64_t version) const;
  void begin_round(const std::vector<std::size_t>& units, std::int64_t version, Time now);
  /// The round has had its first report, or, if it failed, its first sign of that.
  void notice_end(Time now, bool failed);
  void end_round_if_over();
  /// Says to a target whether it has the version. Returns that.
  bool settle_target(Unit& unit, std::int64_t version);
  std::vector<Action> take(Time now);

  Limits limits_;
  std::vector<Unit> units_;
  std::int64_t incarnations_ = 0, rounds_ = 0, epoch_ = 0;
  Composition last_;  ///< of the last round, if it succeeded.
  std::optional<Round> round_;
  // Of the trainer's publication:
  std::optional<Time> gather_end_;  ///< from its first member's publish() until its first round.
  bool gathered_ = false;           ///< its first round may begin, or has.
  int engines_ = 0;                 ///< that it waits for.
  std::string failure_;             ///< why a round of it failed, with nobody lost.
  std::optional<Error> broken_;     ///< why it must be rejected.
  std::vector<Action> out_;
};

}  // namespace reshard::fleet
