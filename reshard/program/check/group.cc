// SPDX-License-Identifier: Apache-2.0
// Law 7: begins and ends steps of all ranks in any order that the waits allow. What has begun or
// ended never keeps another step from it, so one order is as good as any. First a message is
// complete once both its sides have begun; then, as over a transport that moves messages in order,
// only once it is also the next of both ranks in its lane.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <tuple>

#include "reshard/program/check.h"

namespace reshard {
namespace {

using StepKind = ProgramStep::Kind;
using Key = std::tuple<Rank, Rank, std::uint64_t>;  ///< sender, receiver, id.

/// One side of a message.
struct Side {
  Key key;
  bool is_send = false;
  Index bytes = 0;
  std::uint32_t program = 0, step = 0, message = 0;
};

/// How messages move: all that have begun at once; or one by one in the order of the program, those
/// to higher ranks beside those to lower ones.
enum class Moving { at_once, in_lanes };

std::string text(const Side& m) {
  const auto& [from, to, id] = m.key;
  return fmt::format("message {} from rank {} to rank {}", id, from.value(), to.value());
}

/// The sides of all messages in pairs, sender first.
Result<std::vector<Side>> pairs_of(std::span<const Program> programs) {
  std::vector<Side> sides;
  for (std::uint32_t r = 0; r < programs.size(); ++r)
    for (std::uint32_t s = 0; s < programs[r].steps.size(); ++s) {
      const Program& p = programs[r];
      if (p.steps[s].kind != StepKind::exchange) continue;
      std::uint32_t number = p.steps[s].first;
      for (const ProgramMessage& m : p.messages_of(p.steps[s]))
        sides.push_back({m.is_send ? Key(p.rank, m.peer, m.id) : Key(m.peer, p.rank, m.id),
                         m.is_send, m.bytes, r, s, number++});
    }
  std::ranges::stable_sort(sides, {}, [](const Side& m) { return std::pair(m.key, !m.is_send); });
  for (std::size_t i = 0; i < sides.size(); i += 2) {
    const Side& a = sides[i];
    const bool paired = i + 1 < sides.size() && sides[i + 1].key == a.key;
    if (!a.is_send || !paired || sides[i + 1].is_send)
      return fail(Code::corrupt,
                  fmt::format("law 7: {}: step {} of rank {} {} it{}", text(a), a.step,
                              programs[a.program].rank.value(), a.is_send ? "sends" : "receives",
                              paired      ? " again"
                              : a.is_send ? ", no step receives it"
                                          : ", no step sends it"));
    if (i + 2 < sides.size() && sides[i + 2].key == a.key)
      return fail(Code::corrupt, fmt::format("law 7: {}: another has the same id", text(a)));
    if (sides[i + 1].bytes != a.bytes)
      return fail(Code::corrupt,
                  fmt::format("law 7: {}: {} bytes are sent (step {}), {} received (step {})",
                              text(a), a.bytes, a.step, sides[i + 1].bytes, sides[i + 1].step));
  }
  return sides;
}

class GroupRun {
 public:
  GroupRun(std::span<const Program> programs, std::vector<Side> sides, Moving moving);
  Result<> run();

 private:
  using At = std::pair<std::uint32_t, std::uint32_t>;  ///< program and step.
  struct State {
    std::vector<std::uint32_t> waits_left;         ///< by step.
    std::vector<std::vector<std::uint32_t>> next;  ///< by step: those that wait for it.
    std::vector<std::uint32_t> open;               ///< by exchange: messages not complete.
    std::vector<std::uint32_t> exchanges;          ///< in order.
    std::vector<bool> begun, done;                 ///< by step.
    std::size_t next_exchange = 0;                 ///< that may begin.
    /// By lane, up and down: the pairs of its messages in order; how many are complete.
    std::array<std::vector<std::uint32_t>, 2> lanes;
    std::array<std::size_t, 2> moved{};
    std::uint32_t barriers = 0;  ///< begun.
  };
  void ready(At at);
  void begin(At at);
  void end(At at);
  void add_lanes();
  void move_next(std::size_t lane, std::uint32_t pair);
  void complete(std::uint32_t pair);
  bool is_own(std::uint32_t pair) const {
    return std::get<0>(sides_[2 * pair].key) == std::get<1>(sides_[2 * pair].key);
  }
  std::size_t lane_of(std::uint32_t pair) const {
    const auto& [from, to, id] = sides_[2 * pair].key;
    return from < to ? 0 : 1;
  }

  std::span<const Program> programs_;
  std::vector<Side> sides_;
  std::vector<State> states_;
  std::map<At, std::vector<std::uint32_t>> messages_;  ///< sides of an exchange.
  std::vector<int> sides_begun_;                       ///< by pair.
  std::vector<std::vector<At>> barriers_;              ///< begun, by number.
  std::deque<At> ended_;
  const Moving moving_;
};

GroupRun::GroupRun(std::span<const Program> programs, std::vector<Side> sides, Moving moving)
    : programs_(programs),
      sides_(std::move(sides)),
      sides_begun_(sides_.size() / 2),
      moving_(moving) {
  for (const Program& p : programs) {
    State& state = states_.emplace_back();
    const std::size_t n = p.steps.size();
    state.waits_left.resize(n);
    state.next.resize(n);
    state.open.resize(n);
    state.begun.resize(n);
    state.done.resize(n);
    for (std::uint32_t s = 0; s < n; ++s) {
      const auto waits = p.waits_of(StepId(s));
      state.waits_left[s] = static_cast<std::uint32_t>(waits.size());
      for (const StepId w : waits) state.next[w.index()].push_back(s);
      if (p.steps[s].kind != StepKind::exchange) continue;
      state.exchanges.push_back(s);
      state.open[s] = p.steps[s].end - p.steps[s].first;
    }
  }
  for (std::uint32_t i = 0; i < sides_.size(); ++i)
    messages_[{sides_[i].program, sides_[i].step}].push_back(i);
  if (moving_ == Moving::in_lanes) add_lanes();
}

void GroupRun::add_lanes() {
  std::vector<std::uint32_t> order(sides_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, {}, [&](std::uint32_t i) {
    return std::tuple(sides_[i].program, sides_[i].step, sides_[i].message);
  });
  for (const std::uint32_t i : order)
    if (!is_own(i / 2)) states_[sides_[i].program].lanes[lane_of(i / 2)].push_back(i / 2);
}

void GroupRun::complete(std::uint32_t pair) {
  for (const std::uint32_t k : {2 * pair, 2 * pair + 1})
    if (--states_[sides_[k].program].open[sides_[k].step] == 0)
      end({sides_[k].program, sides_[k].step});
}

/// Completes a message that has begun on both sides if it is next there, and those behind it.
void GroupRun::move_next(std::size_t lane, std::uint32_t pair) {
  std::vector<std::uint32_t> pending{pair};
  while (!pending.empty()) {
    const std::uint32_t next = pending.back();
    pending.pop_back();
    State* const states[] = {&states_[sides_[2 * next].program],
                             &states_[sides_[2 * next + 1].program]};
    const auto is_next = [&](const State* s) {
      return s->moved[lane] < s->lanes[lane].size() && s->lanes[lane][s->moved[lane]] == next;
    };
    if (sides_begun_[next] < 2 || !std::ranges::all_of(states, is_next)) continue;
    complete(next);
    for (State* const s : states)
      if (++s->moved[lane] < s->lanes[lane].size())
        pending.push_back(s->lanes[lane][s->moved[lane]]);
  }
}

void GroupRun::end(At at) {
  states_[at.first].done[at.second] = true;
  ended_.push_back(at);
}

void GroupRun::begin(At at) {
  State& state = states_[at.first];
  state.begun[at.second] = true;
  const StepKind kind = programs_[at.first].steps[at.second].kind;
  if (kind == StepKind::tile) return end(at);
  if (kind == StepKind::barrier) {
    const std::uint32_t n = state.barriers++;
    if (barriers_.size() <= n) barriers_.resize(n + 1);
    barriers_[n].push_back(at);
    if (barriers_[n].size() == programs_.size())
      for (const At& each : barriers_[n]) end(each);
    return;
  }
  ++state.next_exchange;
  for (const std::uint32_t i : messages_[at]) {
    if (++sides_begun_[i / 2] < 2) continue;
    if (moving_ == Moving::at_once || is_own(i / 2)) {
      complete(i / 2);
    } else {
      move_next(lane_of(i / 2), i / 2);
    }
  }
}

/// Begins a step whose waits are done, and the exchanges that it kept from their turn.
void GroupRun::ready(At at) {
  const Program& p = programs_[at.first];
  State& state = states_[at.first];
  if (p.steps[at.second].kind != StepKind::exchange) return begin(at);
  while (state.next_exchange < state.exchanges.size()) {
    const std::uint32_t next = state.exchanges[state.next_exchange];
    if (state.waits_left[next] > 0) return;
    begin({at.first, next});
  }
}

Result<> GroupRun::run() {
  for (std::uint32_t r = 0; r < programs_.size(); ++r)
    for (std::uint32_t s = 0; s < programs_[r].steps.size(); ++s)
      if (states_[r].waits_left[s] == 0 && !states_[r].begun[s]) ready({r, s});
  while (!ended_.empty()) {
    const At at = ended_.front();
    ended_.pop_front();
    for (const std::uint32_t s : states_[at.first].next[at.second])
      if (--states_[at.first].waits_left[s] == 0) ready({at.first, s});
  }
  for (std::uint32_t r = 0; r < programs_.size(); ++r)
    for (std::uint32_t s = 0; s < programs_[r].steps.size(); ++s)
      if (!states_[r].done[s])
        return fail(
            Code::corrupt,
            fmt::format("law 7: step {} of rank {} never {}{}: the group waits for itself", s,
                        programs_[r].rank.value(), states_[r].begun[s] ? "ends" : "begins",
                        moving_ == Moving::at_once ? "" : " where messages move in order"));
  return {};
}

std::size_t barriers_of(const Program& p) {
  return static_cast<std::size_t>(
      std::ranges::count(p.steps, StepKind::barrier, [](const ProgramStep& s) { return s.kind; }));
}

}  // namespace

Result<> check_programs(std::span<const Program> programs) {
  for (std::size_t r = 0; r < programs.size(); ++r) {
    const Program &p = programs[r], &first = programs[0];
    if (p.rank.value() != static_cast<Rank::rep>(r))
      return fail(Code::corrupt, fmt::format("program {} is of rank {}", r, p.rank.value()));
    if (p.plan_digest != first.plan_digest)
      return fail(Code::corrupt, fmt::format("rank {} has another plan than rank 0", r));
    if (barriers_of(p) != barriers_of(first))
      return fail(Code::corrupt, fmt::format("law 7: rank {} has {} barriers, rank 0 has {}", r,
                                             barriers_of(p), barriers_of(first)));
  }
  const std::vector<Side> sides = RESHARD_TRY(pairs_of(programs));
  RESHARD_TRY(GroupRun(programs, sides, Moving::at_once).run());
  return GroupRun(programs, sides, Moving::in_lanes).run();
}

}  // namespace reshard
