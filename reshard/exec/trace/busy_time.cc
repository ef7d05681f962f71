// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/trace/busy_time.h"

#include <algorithm>

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

double BusyTime::fastest_eighth() const {
  if (bytes_ <= 0) return 0;
  std::vector<Span> spans = spans_;
  std::ranges::sort(spans, {}, &Span::end);
  std::int64_t first = spans[0].begin;
  for (const Span& span : spans) first = std::min(first, span.begin);
  // The window [from, i] counts from the end of the interval before it.
  double best = 0;
  Index in_window = 0;
  std::size_t from = 0;
  for (const Span& last : spans) {
    in_window += last.bytes;
    while (in_window - spans[from].bytes >= (bytes_ + 7) / 8) in_window -= spans[from++].bytes;
    if (in_window < (bytes_ + 7) / 8) continue;
    const std::int64_t since = from == 0 ? first : spans[from - 1].end;
    const auto ns = static_cast<double>(std::max<std::int64_t>(1, last.end - since));
    best = std::max(best, static_cast<double>(in_window) / ns * 1e9);
  }
  return best;
}

}  // namespace reshard::trace
