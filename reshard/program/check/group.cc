// SPDX-License-Identifier: Apache-2.0
// Laws 7 and 8: begins and ends steps of all ranks in any order that the waits allow. What has
// begun or ended never keeps another step from it, so one order is as good as any. First a message
// is complete once both its sides have begun (law 7). Then, as over a transport that moves
// exchanges one after another, exchanges that messages connect are done together, once each of them
// is the oldest of its rank (law 8).
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
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
  std::uint32_t program = 0, step = 0;
};

/// How messages move: as soon as both sides have begun, or in rounds.
enum class Moving { at_once, in_rounds };

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
      for (const ProgramMessage& m : p.messages_of(p.steps[s]))
        sides.push_back({m.is_send ? Key(p.rank, m.peer, m.id) : Key(m.peer, p.rank, m.id),
                         m.is_send, m.bytes, r, s});
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
    std::size_t oldest = 0;                        ///< exchange that is not done. In rounds.
    std::uint32_t barriers = 0;                    ///< begun.
  };
  /// Exchanges that messages connect.
  struct Round {
    std::vector<At> exchanges;
    std::size_t waiting = 0;  ///< of them: those that have not begun, or are not the oldest.
  };
  void ready(At at);
  void begin(At at);
  void end(At at);
  void add_rounds();
  void move(std::uint32_t program);
  void complete(std::uint32_t pair);

  std::span<const Program> programs_;
  std::vector<Side> sides_;
  std::vector<State> states_;
  std::map<At, std::vector<std::uint32_t>> messages_;  ///< sides of an exchange.
  std::vector<int> sides_begun_;                       ///< by pair.
  std::vector<std::vector<At>> barriers_;              ///< begun, by number.
  std::deque<At> ended_;
  std::map<At, std::uint32_t> round_of_;  ///< by exchange that has messages.
  std::vector<Round> rounds_;
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
  if (moving_ == Moving::in_rounds) add_rounds();
}

void GroupRun::add_rounds() {
  for (const auto& [first, sides] : messages_) {
    if (round_of_.contains(first)) continue;
    const auto number = static_cast<std::uint32_t>(rounds_.size());
    Round& round = rounds_.emplace_back();
    round_of_[first] = number;
    round.exchanges.push_back(first);
    for (std::size_t i = 0; i < round.exchanges.size(); ++i)
      for (const std::uint32_t side : messages_.at(round.exchanges[i])) {
        const Side& other = sides_[side ^ 1U];
        const At at{other.program, other.step};
        if (round_of_.try_emplace(at, number).second) round.exchanges.push_back(at);
      }
    round.waiting = round.exchanges.size();
  }
}

void GroupRun::complete(std::uint32_t pair) {
  for (const std::uint32_t k : {2 * pair, 2 * pair + 1})
    if (--states_[sides_[k].program].open[sides_[k].step] == 0)
      end({sides_[k].program, sides_[k].step});
}

/// Moves the rounds whose last exchange is the oldest of this rank, and those that this lets move.
void GroupRun::move(std::uint32_t program) {
  std::vector<std::uint32_t> pending{program};
  while (!pending.empty()) {
    const std::uint32_t r = pending.back();
    pending.pop_back();
    State& state = states_[r];
    if (state.oldest == state.exchanges.size()) continue;
    const At at{r, state.exchanges[state.oldest]};
    if (!state.begun[at.second]) continue;
    const auto round = round_of_.find(at);
    std::vector<At> over{at};
    if (round != round_of_.end()) {
      if (--rounds_[round->second].waiting > 0) continue;
      over = rounds_[round->second].exchanges;
    }
    for (const At& each : over) {
      end(each);
      ++states_[each.first].oldest;
      pending.push_back(each.first);
    }
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
  if (moving_ == Moving::in_rounds) {
    if (state.exchanges[state.oldest] == at.second) move(at.first);
    return;
  }
  for (const std::uint32_t i : messages_[at])
    if (++sides_begun_[i / 2] == 2) complete(i / 2);
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
        return fail(Code::corrupt,
                    fmt::format("law {}: step {} of rank {} never {}: the group waits for itself",
                                moving_ == Moving::at_once ? 7 : 8, s, programs_[r].rank.value(),
                                states_[r].begun[s] ? "ends" : "begins"));
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
  const auto has_rounds = [](const Program& p) { return p.round_bits >= 0; };
  if (!std::ranges::all_of(programs, has_rounds)) return {};
  for (const Program& p : programs)
    if (p.round_bits != programs[0].round_bits)
      return fail(Code::corrupt, fmt::format("law 8: rank {} has round_bits {}, rank 0 has {}",
                                             p.rank.value(), p.round_bits, programs[0].round_bits));
  return GroupRun(programs, sides, Moving::in_rounds).run();
}

}  // namespace reshard
