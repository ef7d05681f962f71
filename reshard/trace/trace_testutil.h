// SPDX-License-Identifier: Apache-2.0
// Traces made by hand.
#pragma once

#include <string>

#include "reshard/trace/recorder.h"

namespace reshard {

/// Times in microseconds.
inline TraceEvent event_of(TraceEvent::Kind kind, std::int64_t begin_us, std::int64_t end_us,
                           Index bytes = 0, int peer = -1, std::uint64_t message = 0) {
  TraceEvent e;
  e.kind = kind;
  e.begin_ns = begin_us * 1000;
  e.end_ns = end_us * 1000;
  e.bytes = bytes;
  e.peer = Rank(peer);
  e.message = message;
  return e;
}

/// Events of one rank.
inline RankTrace rank_trace(int rank, std::vector<TraceEvent> events) {
  RankTrace trace;
  trace.rank = Rank(rank);
  trace.host = "host" + std::to_string(rank);
  trace.workers = 2;
  trace.events = std::move(events);
  return trace;
}

/// Rank 0 packs and sends 1 MB and 3 MB to rank 1, and 3 MB to rank 2, which begins late, receives
/// slowly and ends last.
inline GroupTrace three_ranks() {
  using Kind = TraceEvent::Kind;
  GroupTrace trace;
  trace.version = 7;
  trace.clock_error_ns = 2000;
  trace.ranks.push_back(rank_trace(
      0, {event_of(Kind::tile, 0, 100, 1'000'000), event_of(Kind::exchange, 100, 1100),
          event_of(Kind::send, 100, 1100, 1'000'000, 1, 5), event_of(Kind::exchange, 200, 2100),
          event_of(Kind::send, 200, 2100, 3'000'000, 1, 6),
          event_of(Kind::send, 200, 2100, 3'000'000, 2, 6)}));
  trace.ranks.push_back(rank_trace(
      1, {event_of(Kind::exchange, 50, 600), event_of(Kind::receive, 50, 600, 1'000'000, 0, 5),
          event_of(Kind::exchange, 60, 1100), event_of(Kind::receive, 60, 1100, 3'000'000, 0, 6)}));
  trace.ranks.push_back(rank_trace(
      2, {event_of(Kind::exchange, 400, 3400), event_of(Kind::receive, 400, 3400, 3'000'000, 0, 6),
          event_of(Kind::tile, 3400, 4000, 3'000'000)}));
  return trace;
}

}  // namespace reshard
