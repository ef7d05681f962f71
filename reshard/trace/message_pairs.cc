// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/message_pairs.h"

#include <algorithm>
#include <tuple>

namespace reshard::trace {
namespace {

/// One side of a message.
struct Side {
  Rank from, to;
  const TraceEvent* event = nullptr;
  auto key() const { return std::tuple(from, to, event->run, event->message); }
};

}  // namespace

std::vector<MessagePair> message_pairs(const GroupTrace& trace) {
  std::vector<Side> sends, receives;
  for (const RankTrace& rank : trace.ranks)
    for (const TraceEvent& e : rank.events) {
      if (e.kind == TraceEvent::Kind::send) sends.push_back({rank.rank, e.peer, &e});
      if (e.kind == TraceEvent::Kind::receive) receives.push_back({e.peer, rank.rank, &e});
    }
  const auto before = [](const Side& a, const Side& b) { return a.key() < b.key(); };
  std::ranges::stable_sort(sends, before);
  std::ranges::stable_sort(receives, before);
  std::vector<MessagePair> pairs;
  auto r = receives.begin();
  for (const Side& s : sends) {
    while (r != receives.end() && before(*r, s)) ++r;
    if (r == receives.end()) break;
    if (before(s, *r)) continue;
    pairs.push_back({s.from, s.to, s.event, r->event});
    ++r;
  }
  return pairs;
}

}  // namespace reshard::trace
