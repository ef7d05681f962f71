// SPDX-License-Identifier: Apache-2.0
#include "reshard/simulate/message_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace reshard::simulate {
namespace {

struct Sided {
  Rank from, to;
  std::uint64_t id = 0;
  Index bytes = 0;
  MessagePair::Side side;
  auto key() const { return std::tuple(from, to, id); }
};

void add_messages(const Program& p, std::uint32_t program, std::vector<Sided>& sent,
                  std::vector<Sided>& received) {
  for (std::uint32_t s = 0; s < p.steps.size(); ++s) {
    if (p.steps[s].kind != ProgramStep::Kind::exchange) continue;
    for (const ProgramMessage& m : p.messages_of(p.steps[s])) {
      const Rank from = m.is_send ? p.rank : m.peer, to = m.is_send ? m.peer : p.rank;
      (m.is_send ? sent : received).push_back({from, to, m.id, m.bytes, {program, s}});
    }
  }
}

std::string text(const Sided& m) {
  return fmt::format("message {} from rank {} to rank {}", m.id, m.from.value(), m.to.value());
}

}  // namespace

Result<std::vector<MessagePair>> pair_messages(std::span<const Program> programs) {
  std::vector<Sided> sent, received;
  for (std::uint32_t p = 0; p < programs.size(); ++p) add_messages(programs[p], p, sent, received);
  std::ranges::stable_sort(sent, {}, &Sided::key);
  std::ranges::stable_sort(received, {}, &Sided::key);
  std::vector<MessagePair> pairs;
  for (std::size_t i = 0; i < std::max(sent.size(), received.size()); ++i) {
    if (i == received.size() || (i < sent.size() && sent[i].key() < received[i].key()))
      return fail(Code::invalid_argument, text(sent[i]) + " is sent, but not received");
    if (i == sent.size() || received[i].key() < sent[i].key())
      return fail(Code::invalid_argument, text(received[i]) + " is received, but not sent");
    if (sent[i].bytes != received[i].bytes)
      return fail(Code::invalid_argument,
                  fmt::format("{} has {} bytes at the sender and {} at the receiver", text(sent[i]),
                              sent[i].bytes, received[i].bytes));
    pairs.push_back({sent[i].from, sent[i].to, sent[i].bytes, sent[i].side, received[i].side});
  }
  return pairs;
}

}  // namespace reshard::simulate
