// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/why_slow.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "reshard/base/number_text.h"
#include "reshard/trace/busy_time.h"
#include "reshard/trace/events.h"
#include "reshard/trace/message_pairs.h"

namespace reshard {
namespace {

using trace::BusyTime;
using Kind = TraceEvent::Kind;

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

bool moves(const TraceEvent& e) {
  return !e.verifying && (e.kind == Kind::tile || e.kind == Kind::exchange);
}

struct Pair {
  Rank from, to;
  friend auto operator<=>(const Pair&, const Pair&) = default;
};

/// The bytes of each pair of ranks. A tile that reads from several peers counts for each in
/// proportion.
std::map<Pair, BusyTime> links_of(const GroupTrace& trace) {
  std::map<Pair, BusyTime> links;
  for (const trace::MessagePair& pair : trace::message_pairs(trace)) {
    if (pair.received->verifying) continue;
    const Pair link{pair.from, pair.to};
    links[link].add(std::max(pair.sent->begin_ns, pair.received->begin_ns), pair.received->end_ns,
                    pair.received->bytes);
  }
  for (const RankTrace& rank : trace.ranks) {
    const TraceEvent* tile = nullptr;
    for (const TraceEvent& e : rank.events) {
      if (e.kind == Kind::tile) tile = &e;
      if (e.kind != Kind::read || e.verifying || tile == nullptr || tile->bytes <= 0) continue;
      const double part =
          std::min(1.0, static_cast<double>(e.bytes) / static_cast<double>(tile->bytes));
      const auto length =
          static_cast<std::int64_t>(part * static_cast<double>(e.end_ns - e.begin_ns));
      links[{e.peer, rank.rank}].add(e.begin_ns, e.begin_ns + length, e.bytes);
    }
  }
  return links;
}

void find_link(const GroupTrace& trace, WhySlow& out) {
  const auto links = links_of(trace);
  Index most = 0;
  for (const auto& [pair, busy] : links) most = std::max(most, busy.bytes());
  double slowest = std::numeric_limits<double>::infinity();
  for (const auto& [pair, busy] : links) {
    const double s = busy.seconds();
    if (busy.bytes() <= 0 || busy.bytes() < most / 10 || s <= 0) continue;
    const double rate = static_cast<double>(busy.bytes()) / s;
    out.fastest_link_per_second = std::max(out.fastest_link_per_second, rate);
    if (rate >= slowest) continue;
    slowest = rate;
    out.link_from = pair.from;
    out.link_to = pair.to;
    out.link_bytes = busy.bytes();
    out.link_seconds = s;
  }
}

void raise_bound(WhySlow& out, const BusyTime& busy, double rate, const char* what, Rank rank) {
  if (busy.bytes() <= 0 || rate <= 0) return;
  const double needed = static_cast<double>(busy.bytes()) / rate;
  if (needed <= out.bound_seconds) return;
  out.bound_seconds = needed;
  out.bound_by = fmt::format("{} rank {}", what, rank.value());
}

void find_bound(const GroupTrace& trace, double copy_rate, WhySlow& out) {
  for (const RankTrace& rank : trace.ranks) {
    BusyTime copies, sends, receives;
    for (const TraceEvent& e : rank.events) {
      if (e.verifying) continue;
      if (e.kind == Kind::tile) copies.add(e.begin_ns, e.end_ns, e.bytes);
      if (e.kind == Kind::send) sends.add(e.begin_ns, e.end_ns, e.bytes);
      if (e.kind == Kind::receive) receives.add(e.begin_ns, e.end_ns, e.bytes);
    }
    raise_bound(out, copies, copy_rate > 0 ? copy_rate : copies.best_rate(), "copies of",
                rank.rank);
    raise_bound(out, sends, sends.best_rate(), "messages from", rank.rank);
    raise_bound(out, receives, receives.best_rate(), "messages to", rank.rank);
  }
}

/// When one rank moved bytes.
struct Movement {
  Rank rank;
  std::int64_t begin = 0, end = 0;
};

std::vector<Movement> movements_of(const GroupTrace& trace) {
  std::vector<Movement> all;
  for (const RankTrace& rank : trace.ranks) {
    std::optional<Movement> mine;
    std::optional<std::int64_t> called;
    for (const TraceEvent& e : rank.events) {
      if (!e.verifying && e.kind == Kind::barrier && !called) called = e.begin_ns;
      if (!moves(e)) continue;
      if (!mine) mine = Movement{rank.rank, e.begin_ns, e.end_ns};
      mine->begin = std::min(mine->begin, e.begin_ns);
      mine->end = std::max(mine->end, e.end_ns);
    }
    // A rank is late if its call is, and not if its first tile waits for others.
    if (mine && called) mine->begin = std::min(mine->begin, *called);
    if (mine) all.push_back(*mine);
  }
  return all;
}

void find_ranks(const GroupTrace& trace, WhySlow& out) {
  std::vector<Movement> all = movements_of(trace);
  if (all.empty()) return;
  const Movement first = *std::ranges::min_element(all, {}, &Movement::begin);
  const Movement late = *std::ranges::max_element(all, {}, &Movement::begin);
  std::ranges::stable_sort(all, {}, &Movement::end);
  const Movement last = all.back();
  out.seconds = seconds(last.end - first.begin);
  out.slowest_rank = last.rank;
  for (const Movement& m : all) out.waited_seconds += seconds(last.end - m.end);
  if (all.size() > 1) out.behind_seconds = seconds(last.end - all[(all.size() - 1) / 2].end);
  out.late_rank = late.rank;
  out.late_seconds = seconds(late.begin - first.begin);
}

std::string ms(double s) { return human_seconds(s); }

std::string rate_text(double bytes_per_second) {
  return fmt::format("{:.2f} GB/s", bytes_per_second / 1e9);
}

}  // namespace

WhySlow why_slow(const GroupTrace& trace, double copy_bytes_per_second) {
  WhySlow out;
  find_ranks(trace, out);
  find_bound(trace, copy_bytes_per_second, out);
  find_link(trace, out);
  out.clock_error_seconds = seconds(trace.clock_error_ns);
  for (const RankTrace& rank : trace.ranks) out.dropped += rank.dropped;
  return out;
}

std::string why_slow_text(const WhySlow& why) {
  if (why.slowest_rank.value() < 0) return "  nothing moved in the traced refit\n";
  std::string text = fmt::format(
      "  traced refit: {} until all bytes were in place; {:.0f} % of the bound ({}: {})\n",
      ms(why.seconds), 100 * why.bound_fraction(), ms(why.bound_seconds), why.bound_by);
  text += fmt::format("  all waited for rank {}: {} behind the median, {} of waiting in all\n",
                      why.slowest_rank.value(), ms(why.behind_seconds), ms(why.waited_seconds));
  if (why.link_from.value() >= 0)
    text +=
        fmt::format("  slowest link: rank {} to rank {}, {} at {}; the fastest has {}\n",
                    why.link_from.value(), why.link_to.value(), human_bytes(why.link_bytes),
                    rate_text(why.link_bytes_per_second()), rate_text(why.fastest_link_per_second));
  if (why.late_seconds > why.clock_error_seconds)
    text += fmt::format("  last to begin: rank {}, {} after the first\n", why.late_rank.value(),
                        ms(why.late_seconds));
  if (why.dropped > 0)
    text += fmt::format("  {} did not fit in the trace\n", plural(why.dropped, "event"));
  return text;
}

}  // namespace reshard
