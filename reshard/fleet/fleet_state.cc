// SPDX-License-Identifier: Apache-2.0
#include "reshard/fleet/fleet_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace reshard::fleet {
namespace {

constexpr std::size_t kMaxNameBytes = 64;

bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= kMaxNameBytes && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

const char* name(Role role) { return role == Role::trainer ? "trainer" : "engine"; }

}  // namespace

bool FleetState::Unit::present() const {
  return !seats.empty() &&
         std::ranges::all_of(seats, [](const Seat& s) { return s.member.has_value(); });
}

bool FleetState::Unit::ready() const {
  return present() && std::ranges::all_of(seats, [](const Seat& s) { return s.ready; });
}

std::int64_t FleetState::Unit::held() const {
  const bool equal =
      std::ranges::all_of(seats, [&](const Seat& s) { return s.held == seats.front().held; });
  return equal ? seats.front().held : kNoVersion;
}

std::int64_t FleetState::Unit::published() const { return seats.front().published; }

FleetState::Seat* FleetState::seat_of(MemberId member, Unit** unit) {
  for (Unit& u : units_)
    for (Seat& s : u.seats)
      if (s.member == member) {
        if (unit != nullptr) *unit = &u;
        return &s;
      }
  return nullptr;
}

std::string FleetState::trouble(const JoinRequest& request) const {
  if (!is_name(request.unit))
    return "the name of a unit has 1 to 64 letters, digits, '-', '_' and '.'";
  if (request.size < 1 || request.size > kMaxUnitSize)
    return fmt::format("a unit of {} ranks: must be 1 to {}", request.size, kMaxUnitSize);
  if (request.rank < 0 || request.rank >= request.size)
    return fmt::format("rank {} in a unit of {}", request.rank, request.size);
  for (const Unit& unit : units_) {
    const bool alive = std::ranges::any_of(unit.seats, [](const Seat& s) { return !!s.member; });
    if (!alive) continue;
    if (unit.name != request.unit) {
      if (unit.role == Role::trainer && request.role == Role::trainer)
        return fmt::format("the fleet has a trainer, '{}'", unit.name);
      continue;
    }
    if (unit.role != request.role)
      return fmt::format("unit '{}' is a{} {}", unit.name, unit.role == Role::engine ? "n" : "",
                         name(unit.role));
    if (unit.seats.size() != static_cast<std::size_t>(request.size))
      return fmt::format("unit '{}' has {} ranks, this process says {}", unit.name,
                         unit.seats.size(), request.size);
    if (unit.layout != request.layout)
      return fmt::format("unit '{}' has another layout on its other ranks", unit.name);
    if (unit.seats[static_cast<std::size_t>(request.rank)].member)
      return fmt::format("rank {} of unit '{}' is taken", request.rank, unit.name);
  }
  return "";
}

FleetState::Unit& FleetState::unit_for(const JoinRequest& request) {
  auto found = std::ranges::find(units_, request.unit, &Unit::name);
  if (found == units_.end()) {
    found = units_.emplace(units_.end());
    found->name = request.unit;
  }
  if (std::ranges::none_of(found->seats, [](const Seat& s) { return !!s.member; })) {
    found->role = request.role;
    found->layout = request.layout;
    found->seats.assign(static_cast<std::size_t>(request.size), Seat{});
  }
  return *found;
}

std::vector<Action> FleetState::join(MemberId member, const JoinRequest& request, Time now) {
  if (std::string why = trouble(request); !why.empty())
    return {Action{.kind = Action::Kind::refuse, .to = member, .text = std::move(why)}};
  Unit& unit = unit_for(request);
  Seat& seat = unit.seats[static_cast<std::size_t>(request.rank)];
  seat = Seat{};
  seat.member = member;
  seat.address = request.address;
  if (request.role == Role::engine) seat.held = seat.keeps = std::max(request.version, kNoVersion);
  if (unit.present()) {
    unit.incarnation = ++incarnations_;
    unit.tried = kNoVersion;
    unit.late = true;
  }
  return take(now);
}

std::vector<Action> FleetState::ready(MemberId member, Time now) {
  Unit* unit = nullptr;
  Seat* seat = seat_of(member, &unit);
  if (seat != nullptr && unit->role == Role::engine) seat->ready = true;
  return take(now);
}

std::vector<Action> FleetState::publish(MemberId member, std::int64_t version, int engines,
                                        Time now) {
  Unit* unit = nullptr;
  Seat* seat = seat_of(member, &unit);
  if (seat == nullptr || unit->role != Role::trainer || seat->ready) return {};
  seat->ready = true;
  seat->published = version;
  engines_ = engines;
  if (!gather_end_) gather_end_ = now + limits_.gather;
  if (version < 0)
    broken_ = Error{Code::invalid_argument, fmt::format("version {}: must be 0 or more", version)};
  for (const Seat& other : unit->seats)
    if (other.ready && other.published != version)
      broken_ = Error{
          Code::invalid_argument,
          fmt::format("ranks of the trainer publish versions {} and {}", other.published, version)};
  if (publisher() != nullptr)
    for (Unit& each : units_) each.late = each.role == Role::engine && !each.present();
  return take(now);
}

std::vector<Action> FleetState::report(MemberId member, std::int64_t round, bool has,
                                       std::int64_t keeps, const std::string& error, Time now) {
  Seat* seat = seat_of(member);
  if (seat == nullptr || !seat->pending || !round_ || round != rounds_) return {};
  seat->pending = false;
  seat->has = has;
  seat->keeps = std::max(keeps, kNoVersion);
  if (!has && round_->error.empty()) round_->error = error;
  notice_end(now, !has);
  return take(now);
}

std::vector<Action> FleetState::lose(MemberId member, Time now) {
  Unit* unit = nullptr;
  Seat* seat = seat_of(member, &unit);
  if (seat == nullptr) return {};
  empty_seat(*unit, *seat);
  if (round_ && round_->any_lost) notice_end(now, true);
  return take(now);
}

void FleetState::empty_seat(Unit& unit, Seat& seat) {
  const auto index = static_cast<std::size_t>(&unit - units_.data());
  if (round_ && std::ranges::find(round_->units, index) != round_->units.end())
    round_->any_lost = true;
  seat = Seat{};
  // Rounds that failed may have failed because of it.
  for (Unit& each : units_) each.tried = kNoVersion;
  if (unit.role == Role::trainer && gather_end_)
    broken_ = Error{Code::aborted,
                    fmt::format("rank {} of the trainer was lost", &seat - unit.seats.data())};
}

void FleetState::notice_end(Time now, bool failed) {
  if (!round_->ending) round_->end = now + limits_.report;
  round_->ending = true;
  if (!failed || round_->cancelled) return;
  round_->cancelled = true;
  for (const std::size_t i : round_->units)
    for (const Seat& seat : units_[i].seats)
      if (seat.pending)
        out_.push_back({.kind = Action::Kind::cancel,
                        .to = *seat.member,
                        .version = round_->version,
                        .round = rounds_});
}

std::vector<Action> FleetState::tick(Time now) {
  if (round_ && now >= round_->end) {
    for (Unit& unit : units_)
      for (Seat& seat : unit.seats)
        if (seat.pending) {
          out_.push_back({.kind = Action::Kind::drop, .to = *seat.member});
          empty_seat(unit, seat);
        }
  } else if (!round_ && gather_end_ && now >= *gather_end_) {
    gathered_ = true;
    if (publisher() == nullptr && !broken_)
      broken_ =
          Error{Code::deadline, "not all ranks of the trainer have published before the deadline"};
  }
  return take(now);
}

std::optional<Time> FleetState::next_time() const {
  if (round_) return round_->end;
  return gathered_ ? std::nullopt : gather_end_;
}

std::vector<Action> FleetState::take(Time now) {
  end_round_if_over();
  if (!round_) schedule(now);
  return std::exchange(out_, {});
}

FleetState::Unit* FleetState::publisher() {
  for (Unit& unit : units_)
    if (unit.role == Role::trainer && unit.ready()) return &unit;
  return nullptr;
}

bool FleetState::lacks(const Unit& unit, std::int64_t version) const {
  return unit.role == Role::engine && unit.present() && unit.held() < version &&
         (unit.tried != version || unit.tries < kMaxTries);
}

void FleetState::forget_absent_units() {
  std::erase_if(units_, [](const Unit& unit) {
    return std::ranges::none_of(unit.seats, [](const Seat& s) { return !!s.member; });
  });
}

void FleetState::schedule(Time now) {
  forget_absent_units();
  if (broken_) reject(*broken_);
  Unit* trainer = publisher();
  if (trainer != nullptr) schedule_published(*trainer, now);
  if (!round_ && publisher() == nullptr) schedule_catch_up(now);
}

void FleetState::schedule_published(Unit& trainer, Time now) {
  const std::int64_t version = trainer.published();
  int engines = 0;
  bool held = false;
  for (const Unit& unit : units_) {
    if (unit.role != Role::engine || !unit.present()) continue;
    ++engines;
    held |= unit.held() == version;
    if (unit.held() > version)
      return reject({Code::invalid_argument,
                     fmt::format("version {} is not above {}, which engine '{}' holds", version,
                                 unit.held(), unit.name)});
  }
  std::vector<std::size_t> units{static_cast<std::size_t>(&trainer - units_.data())};
  bool waits = engines < engines_;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    // Who came later takes the version from who has it by then.
    if (!lacks(unit, version) || (unit.late && held)) continue;
    waits |= !unit.ready();
    if (unit.ready()) units.push_back(i);
  }
  if (waits && !gathered_) return;
  gathered_ = true;
  if (units.size() == 1) return release(left_behind(version));
  begin_round(units, version, now);
}

std::string FleetState::left_behind(std::int64_t version) const {
  std::vector<std::string> names;
  for (const Unit& unit : units_)
    if (unit.role == Role::engine && unit.present() && !unit.late && unit.held() < version)
      names.push_back(fmt::format("'{}'", unit.name));
  if (names.empty()) return "";
  return fmt::format("engines {} have not got version {}: {}", fmt::join(names, ", "), version,
                     failure_.empty() ? "they were not ready before the deadline" : failure_);
}

void FleetState::schedule_catch_up(Time now) {
  const Unit* source = nullptr;
  for (const Unit& unit : units_)
    if (unit.role == Role::engine && unit.ready() &&
        unit.held() > (source != nullptr ? source->held() : kNoVersion))
      source = &unit;
  if (source == nullptr) return;
  std::vector<std::size_t> units{static_cast<std::size_t>(source - units_.data())};
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (units_[i].ready() && lacks(units_[i], source->held())) units.push_back(i);
  if (units.size() > 1) begin_round(units, source->held(), now);
}

void FleetState::begin_round(const std::vector<std::size_t>& units, std::int64_t version,
                             Time now) {
  Composition now_in;
  std::vector<Participant> participants;
  int first = 0;
  for (const std::size_t i : units) {
    Unit& unit = units_[i];
    now_in.push_back(unit.incarnation);
    const int size = static_cast<int>(unit.seats.size());
    participants.push_back({unit.name, unit.layout, first, size, participants.empty()});
    first += size;
    for (Seat& seat : unit.seats) {
      seat.pending = true;
      seat.has = false;
    }
  }
  ++rounds_;
  if (now_in != last_) ++epoch_;
  last_ = std::move(now_in);
  round_ = Round{.version = version, .units = units, .end = now + limits_.round};
  for (std::size_t k = 0; k < units.size(); ++k) {
    const Unit& unit = units_[units[k]];
    for (std::size_t r = 0; r < unit.seats.size(); ++r)
      out_.push_back({.kind = Action::Kind::order,
                      .to = *unit.seats[r].member,
                      .version = version,
                      .round = rounds_,
                      .epoch = epoch_,
                      .rank = participants[k].first + static_cast<int>(r),
                      .address = units_[units.front()].seats.front().address,
                      .participants = participants});
  }
}

void FleetState::end_round_if_over() {
  if (!round_) return;
  bool succeeded = !round_->any_lost;
  for (const std::size_t i : round_->units)
    for (const Seat& seat : units_[i].seats) {
      if (seat.pending) return;
      succeeded = succeeded && seat.has;
    }
  const Round round = *std::exchange(round_, std::nullopt);
  bool any_has = false;
  for (std::size_t k = 1; k < round.units.size(); ++k)
    any_has |= settle_target(units_[round.units[k]], round.version);
  // A member that died after it had the version, which nobody has noticed, fails the others.
  if (!any_has && !round.any_lost)
    for (std::size_t k = 1; k < round.units.size(); ++k)
      units_[round.units[k]].count(round.version);
  if (!succeeded) last_.clear();
  if (!succeeded && !round.any_lost) failure_ = round.error;
}

void FleetState::Unit::count(std::int64_t version) {
  tries = tried == version ? tries + 1 : 1;
  tried = version;
}

bool FleetState::settle_target(Unit& unit, std::int64_t version) {
  const bool has =
      unit.present() && std::ranges::all_of(unit.seats, [](const Seat& s) { return s.has; });
  for (Seat& seat : unit.seats) {
    if (!seat.member) continue;
    seat.held = has ? version : seat.keeps;
    seat.ready = seat.ready && !has;
    seat.has = false;
    if (has)
      out_.push_back({.kind = Action::Kind::confirm, .to = *seat.member, .version = version});
  }
  return has;
}

void FleetState::release(const std::string& text) {
  end_publication({.kind = Action::Kind::release, .text = text});
}

void FleetState::reject(const Error& why) {
  end_publication({.kind = Action::Kind::reject, .code = why.code, .text = why.message});
}

void FleetState::end_publication(const Action& said) {
  Unit* trainer = nullptr;
  for (Unit& unit : units_)
    if (unit.role == Role::trainer &&
        std::ranges::any_of(unit.seats, [](const Seat& s) { return s.ready; }))
      trainer = &unit;
  if (trainer != nullptr)
    for (Seat& seat : trainer->seats) {
      if (!std::exchange(seat.ready, false)) continue;
      Action action = said;
      action.to = *seat.member;
      action.version = std::exchange(seat.published, kNoVersion);
      for (const Unit& unit : units_)
        if (unit.role == Role::engine && unit.present() && unit.held() == action.version)
          action.holders.push_back(unit.name);
      std::ranges::sort(action.holders);
      out_.push_back(std::move(action));
    }
  gather_end_.reset();
  gathered_ = false;
  engines_ = 0;
  failure_.clear();
  broken_.reset();
}

std::string FleetState::text() const {
  std::string out = fmt::format("epoch {} of {}, round {}", epoch_, fmt::join(last_, " "), rounds_);
  if (round_)
    out += fmt::format(" of version {}{}{}{}", round_->version, round_->ending ? ", ending" : "",
                       round_->cancelled ? ", cancelled" : "", round_->any_lost ? ", lost" : "");
  out += "\n";
  if (gather_end_)
    out += fmt::format("published for {} engines{}{}{}\n", engines_, gathered_ ? ", gathered" : "",
                       failure_.empty() ? "" : ", failed: " + failure_,
                       broken_ ? ", broken: " + broken_->message : "");
  for (const Unit& unit : units_) {
    out += fmt::format("{} '{}' ({}{}):", name(unit.role), unit.name, unit.incarnation,
                       unit.late ? ", late" : "");
    if (unit.tried != kNoVersion) out += fmt::format(" tried {} {} times;", unit.tried, unit.tries);
    for (const Seat& s : unit.seats)
      out += !s.member ? " [absent]"
                       : fmt::format(" [{}{}{}{}{}]", s.member->value(), s.ready ? " ready" : "",
                                     s.pending ? " pending" : "", s.has ? " has" : "",
                                     s.held == kNoVersion && s.published == kNoVersion
                                         ? ""
                                         : fmt::format(" {}", std::max(s.held, s.published)));
    out += "\n";
  }
  return out;
}

}  // namespace reshard::fleet
