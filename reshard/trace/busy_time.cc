// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/busy_time.h"

#include <algorithm>
#include <deque>

namespace reshard::trace {

void BusyTime::add(std::int64_t begin_ns, std::int64_t end_ns, Index bytes) {
  spans_.push_back({begin_ns, std::max(begin_ns, end_ns), bytes});
  bytes_ += bytes;
}

double BusyTime::seconds() const {
  std::vector<Span> spans = spans_;
  std::ranges::sort(spans, {}, &Span::begin);
  std::int64_t ns = 0, until = spans.empty() ? 0 : spans[0].begin;
  for (const Span& span : spans) {
    ns += std::max<std::int64_t>(0, span.end - std::max(until, span.begin));
    until = std::max(until, span.end);
  }
  return static_cast<double>(ns) * 1e-9;
}

double BusyTime::best_rate() const {
  std::vector<Span> spans = spans_;
  std::ranges::sort(spans, {}, &Span::end);
  double best = 0;
  for (const Index part : {8, 4, 2, 1})
    best = std::max(best, best_rate(spans, (bytes_ + part - 1) / part));
  return best;
}

/// The highest rate of the shortest stretches of intervals that have this many bytes.
double BusyTime::best_rate(const std::vector<Span>& by_end, Index least) {
  if (least <= 0) return 0;
  double best = 0;
  Index bytes = 0;
  std::size_t from = 0;
  std::deque<const Span*> earliest;  ///< of the stretch and of its tails: ascending beginnings.
  for (const Span& last : by_end) {
    bytes += last.bytes;
    while (!earliest.empty() && earliest.back()->begin >= last.begin) earliest.pop_back();
    earliest.push_back(&last);
    while (bytes - by_end[from].bytes >= least) {
      if (earliest.front() == &by_end[from]) earliest.pop_front();
      bytes -= by_end[from++].bytes;
    }
    if (bytes < least) continue;
    const auto ns =
        static_cast<double>(std::max<std::int64_t>(1, last.end - earliest.front()->begin));
    best = std::max(best, static_cast<double>(bytes) / ns * 1e9);
  }
  return best;
}

}  // namespace reshard::trace
