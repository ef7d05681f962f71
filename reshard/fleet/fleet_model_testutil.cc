// SPDX-License-Identifier: Apache-2.0
#include "reshard/fleet/fleet_model_testutil.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "reshard/base/hash.h"

namespace reshard::fleet {
namespace {

using Kind = ModelMessage::Kind;
using Life = ModelProcess::Life;
using Stage = ModelProcess::Stage;

constexpr Limits kLimits{.gather = Time(10), .round = Time(20), .report = Time(5)};

/// One state and the steps from it.
class Steps {
 public:
  Steps(const ModelFleet& fleet, const ModelWorld& from) : fleet_(fleet), from_(from) {}

  /// The states that processes and messages lead to. Receiving is invisible to others, so it comes
  /// first.
  std::vector<ModelWorld> progress() {
    for (std::size_t i = 0; i < from_.processes.size() && out_.empty(); ++i) receive(i);
    if (!out_.empty()) return std::move(out_);
    for (std::size_t i = 0; i < from_.processes.size(); ++i) {
      if (!process(i).outbox.empty()) serve(i);
      if (process(i).life != Life::alive) continue;
      begin(i);
      move(i);
      if (must_fail(i)) fail(i);
    }
    return std::move(out_);
  }

  /// Those that only the world brings: faults, and processes that come.
  std::vector<ModelWorld> chance() {
    for (std::size_t i = 0; i < from_.processes.size(); ++i) {
      const ModelProcess& p = process(i);
      const bool again = fleet_.restarts && p.life == Life::dead && p.outbox.empty();
      if (p.life == Life::outside || again) join(next(), i);
      if (p.life != Life::alive) continue;
      if (from_.deaths > 0) die(i);
      if (from_.stops > 0) stop(i);
      const bool in_refit = p.stage >= Stage::ordered && p.stage <= Stage::torn;
      if (from_.failures > 0 && in_refit) --fail(i).failures;
    }
    return std::move(out_);
  }

  std::vector<ModelWorld> timer() {
    if (const auto at = from_.server.next_time()) {
      ModelWorld& world = next();
      carry_out(world, world.server.tick(*at));
    }
    return std::move(out_);
  }

  void join(ModelWorld& world, std::size_t i) const {
    ModelProcess& p = world.processes[i];
    p = ModelProcess{.life = Life::alive, .id = MemberId(world.ids++), .next = p.next};
    const ModelFleet::Place& at = fleet_.places[i];
    carry_out(world,
              world.server.join(p.id, {at.unit, at.role, at.rank, at.size, "layout"}, Time(0)));
  }

 private:
  const ModelProcess& process(std::size_t i) const { return from_.processes[i]; }
  bool trains(std::size_t i) const { return fleet_.places[i].role == Role::trainer; }
  ModelWorld& next() { return out_.emplace_back(from_); }
  bool is_target(std::size_t i) const {
    return process(i).order.participants.front().unit != fleet_.places[i].unit;
  }

  static void carry_out(ModelWorld& world, const std::vector<Action>& actions) {
    for (const Action& a : actions)
      for (ModelProcess& p : world.processes)
        if (p.id == a.to && p.life != Life::dead) p.inbox.push_back(a);
  }

  void die(std::size_t i) {
    ModelWorld& world = next();
    ModelProcess& p = world.processes[i];
    --world.deaths;
    p.life = Life::dead;
    p.inbox.clear();
    p.outbox.push_back({.kind = Kind::lost});
    if (p.stage >= Stage::ordered) world.aborted.insert(p.order.round);
  }

  void stop(std::size_t i) {
    ModelWorld& world = next();
    --world.stops;
    world.processes[i].life = Life::stopped;
  }

  /// The server takes a message.
  void serve(std::size_t i) {
    ModelWorld& world = next();
    ModelProcess& p = world.processes[i];
    const ModelMessage m = p.outbox.front();
    p.outbox.pop_front();
    FleetState& s = world.server;
    carry_out(world, m.kind == Kind::ready     ? s.ready(p.id, Time(0))
                     : m.kind == Kind::publish ? s.publish(p.id, m.version, 0, Time(0))
                     : m.kind == Kind::report
                         ? s.report(p.id, m.round, m.has, m.version, "failed", Time(0))
                         : s.lose(p.id, Time(0)));
  }

  void receive(std::size_t i) {
    if (process(i).inbox.empty() || process(i).life != Life::alive) return;
    ModelWorld& world = next();
    ModelProcess& p = world.processes[i];
    const Action a = p.inbox.front();
    p.inbox.pop_front();
    if (a.kind == Action::Kind::order) {
      take_order(p, a, fleet_.places[i].unit);
    } else if (a.kind == Action::Kind::cancel) {
      p.cancelled = p.cancelled || a.round == p.order.round;
    } else if (a.kind == Action::Kind::confirm) {
      p.confirmed = a.version;
      p.confirmed_buffer = p.buffer;
      p.stage = Stage::busy;
    } else if (a.kind == Action::Kind::release) {
      ++p.next;
      p.stage = Stage::busy;
    } else if (a.kind == Action::Kind::reject) {
      ++p.rejected;
      p.stage = Stage::busy;
    } else {  // Disconnected: it may come again.
      p.life = Life::outside;
      p.outbox.clear();
    }
  }

  /// Before a target is written, it gives up what is not confirmed, or is to be taken again.
  static void take_order(ModelProcess& p, const Action& a, const std::string& unit) {
    p.order = a;
    p.stage = Stage::ordered;
    p.cancelled = p.failed = false;
    if (a.participants.front().unit == unit) return;
    p.buffer = p.confirmed_buffer;
    if (p.confirmed >= a.version) p.confirmed = kNoVersion;
    p.whole = p.kept();
  }

  void begin(std::size_t i) {
    const ModelProcess& p = process(i);
    const bool done = trains(i) && (p.next > fleet_.versions || p.rejected > 1);
    if (p.stage != Stage::busy || done) return;
    ModelProcess& q = next().processes[i];
    q.stage = Stage::waits;
    q.outbox.push_back(trains(i) ? ModelMessage{.kind = Kind::publish, .version = q.next}
                                 : ModelMessage{.kind = Kind::ready});
  }

  /// The other processes that its group is to have.
  template <class F>
  bool all_others(std::size_t i, F f) const {
    for (std::size_t k = 0; k < from_.processes.size(); ++k) {
      const bool in = std::ranges::any_of(
          process(i).order.participants,
          [&](const Participant& each) { return each.unit == fleet_.places[k].unit; });
      if (k != i && in && !f(process(k))) return false;
    }
    return true;
  }

  /// The next step of its refit, if the others have come as far as it needs.
  void move(std::size_t i) {
    const ModelProcess& p = process(i);
    if (p.stage < Stage::ordered || p.stage > Stage::committed) return;
    const bool waits = p.stage == Stage::grouped || p.stage == Stage::torn;
    const bool here = !waits || all_others(i, [&](const ModelProcess& q) {
      if (q.order.round != p.order.round) return false;
      return q.stage >= p.stage && !q.failed;
    });
    if (!here) return;
    ModelWorld& world = next();
    ModelProcess& q = world.processes[i];
    q.stage = static_cast<Stage>(static_cast<int>(p.stage) + 1);
    const int copy = fleet_.doubled ? 1 - q.buffer : 0;
    if (q.stage == Stage::torn && is_target(i)) {
      if (!fleet_.doubled) q.whole = kNoVersion;
      q.copies[copy] = kNoVersion;
    }
    if (q.stage == Stage::committed && is_target(i)) {
      q.copies[copy] = q.whole = q.order.version;
      q.buffer = copy;
    }
    if (q.stage == Stage::reported) report(q, true);
  }

  static void report(ModelProcess& p, bool has) {
    p.outbox.push_back(
        {.kind = Kind::report, .version = p.kept(), .round = p.order.round, .has = has});
  }

  /// While it waits for others to join, only the server can tell of a death; afterwards the group
  /// does. A wait for a stopped process ends at its deadline.
  bool must_fail(std::size_t i) const {
    const ModelProcess& p = process(i);
    if (p.stage < Stage::ordered || p.stage > Stage::torn) return false;
    const bool stopped =
        !all_others(i, [](const ModelProcess& q) { return q.life != Life::stopped; });
    const bool told = p.stage <= Stage::grouped && p.cancelled;
    return stopped || told || (p.stage > Stage::ordered && from_.aborted.contains(p.order.round));
  }

  ModelWorld& fail(std::size_t i) {
    ModelWorld& world = next();
    ModelProcess& p = world.processes[i];
    world.aborted.insert(p.order.round);
    p.stage = Stage::reported;
    p.failed = true;
    report(p, false);
    return world;
  }

  const ModelFleet& fleet_;
  const ModelWorld& from_;
  std::vector<ModelWorld> out_;
};

/// Invariants of every state; "" if they hold.
std::string wrong_in(const ModelFleet& fleet, const ModelWorld& world) {
  for (std::size_t i = 0; i < world.processes.size(); ++i) {
    const ModelProcess& p = world.processes[i];
    const std::int64_t told = p.told(fleet.doubled);
    if (told != kNoVersion && p.copies[p.confirmed_buffer] != told)
      return fmt::format("process {} calls version {} whole, which is not", i, told);
    if (p.life != Life::alive) continue;
    for (const Action& a : p.inbox) {
      if (a.kind == Action::Kind::drop && world.stops == fleet.stops)
        return fmt::format("process {} is dropped, although nobody has stopped", i);
      if (a.kind == Action::Kind::order && p.stage != Stage::waits && p.stage != Stage::reported)
        return fmt::format("process {} gets an order while it is in another", i);
      if (a.kind != Action::Kind::confirm) continue;
      for (std::size_t k = 0; k < world.processes.size(); ++k)
        if (fleet.places[k].unit == fleet.places[i].unit && world.processes[k].whole != a.version &&
            world.processes[k].life == Life::alive)
          return fmt::format("version {} is confirmed to process {}, but process {} lacks it",
                             a.version, i, k);
    }
  }
  return "";
}

/// The version that all processes of a unit have been told to have, kNoVersion if they differ;
/// nothing unless all are alive.
std::optional<std::int64_t> told_to(const ModelFleet& fleet, const ModelWorld& world,
                                    const std::string& unit) {
  std::optional<std::int64_t> version;
  for (std::size_t i = 0; i < world.processes.size(); ++i) {
    const ModelProcess& p = world.processes[i];
    if (fleet.places[i].unit != unit) continue;
    if (p.life != Life::alive) return std::nullopt;
    const std::int64_t told = p.told(fleet.doubled);
    version = version.value_or(told) == told ? told : kNoVersion;
  }
  return version;
}

/// True if all processes of the unit have been members from the first.
bool was_there(const ModelFleet& fleet, const ModelWorld& world, const std::string& unit) {
  for (std::size_t i = 0; i < world.processes.size(); ++i)
    if (fleet.places[i].unit == unit &&
        (fleet.places[i].late || world.processes[i].id.index() != i))
      return false;
  return true;
}

/// Invariants of states in which no step is left but those of chance; "" if they hold.
std::string wrong_at_end(const ModelFleet& fleet, const ModelWorld& world) {
  if (world.server.in_round()) return "a round that nothing ends";
  std::int64_t newest = kNoVersion;
  for (const ModelFleet::Place& at : fleet.places)
    if (at.role == Role::engine)
      newest = std::max(newest, told_to(fleet, world, at.unit).value_or(kNoVersion));
  const bool faultless = world.failures == fleet.failures;
  for (std::size_t i = 0; i < world.processes.size(); ++i) {
    const ModelProcess& p = world.processes[i];
    const ModelFleet::Place& at = fleet.places[i];
    if (p.life != Life::alive) continue;
    const bool idle = p.stage == Stage::waits || p.stage == Stage::reported;
    if (at.role == Role::trainer ? p.stage != Stage::busy : !idle)
      return fmt::format("process {} waits for ever", i);
    if (at.role == Role::trainer || !faultless) continue;
    const std::optional<std::int64_t> told = told_to(fleet, world, at.unit);
    if (told && *told != newest)
      return fmt::format("process {} has version {}, others {}", i, *told, newest);
    if (told && *told < fleet.versions && world.processes.front().next > fleet.versions &&
        was_there(fleet, world, at.unit))
      return fmt::format("process {} was there all the time and has only version {}", i, *told);
  }
  return "";
}

}  // namespace

std::string ModelWorld::text() const {
  std::string out = server.text();
  for (const ModelProcess& p : processes) {
    out +=
        fmt::format("{}/{} member {} of round {}{}{} copies {} {} whole {} in {} told {} in {}; ",
                    static_cast<int>(p.life), static_cast<int>(p.stage), p.id.value(),
                    p.order.round, p.cancelled ? " cancelled" : "", p.failed ? " failed" : "",
                    p.copies[0], p.copies[1], p.whole, p.buffer, p.confirmed, p.confirmed_buffer);
    out += fmt::format("next {} {}", p.next, p.rejected);
    for (const Action& a : p.inbox)
      out += fmt::format(" <{} {} {} {}", static_cast<int>(a.kind), a.version, a.round, a.epoch);
    for (const ModelMessage& m : p.outbox)
      out += fmt::format(" >{} {} {} {}", static_cast<int>(m.kind), m.version, m.round, m.has);
    out += "\n";
  }
  return out + fmt::format("{} {} {} aborted {}", deaths, stops, failures, fmt::join(aborted, " "));
}

ModelResult search(const ModelFleet& fleet, std::size_t most) {
  ModelResult result;
  ModelWorld start{.server = FleetState(kLimits),
                   .processes = std::vector<ModelProcess>(fleet.places.size()),
                   .aborted = {},
                   .deaths = fleet.deaths,
                   .stops = fleet.stops,
                   .failures = fleet.failures};
  for (std::size_t i = 0; i < fleet.places.size(); ++i)
    if (!fleet.places[i].late) Steps(fleet, start).join(start, i);
  std::unordered_set<std::uint64_t> seen{hash64(start.text())};
  std::vector<ModelWorld> stack{std::move(start)};
  while (!stack.empty() && result.violation.empty()) {
    const ModelWorld world = std::move(stack.back());
    stack.pop_back();
    if (++result.states > most) result.violation = "too many states";
    std::string wrong = wrong_in(fleet, world);
    std::vector<ModelWorld> next = Steps(fleet, world).progress();
    if (next.empty()) next = Steps(fleet, world).timer();
    if (next.empty()) {
      ++result.ends;
      if (wrong.empty()) wrong = wrong_at_end(fleet, world);
    }
    for (ModelWorld& each : Steps(fleet, world).chance()) next.push_back(std::move(each));
    if (!wrong.empty()) result.violation = wrong + "\n" + world.text();
    for (ModelWorld& each : next)
      if (seen.insert(hash64(each.text())).second) stack.push_back(std::move(each));
  }
  return result;
}

}  // namespace reshard::fleet
