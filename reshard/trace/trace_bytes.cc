// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/trace_bytes.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <string>

#include "reshard/base/bytes.h"
#include "reshard/trace/recorder.h"

namespace reshard::trace {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr std::size_t kLeastEventBytes = 11, kMaxHostBytes = 256;
constexpr std::uint64_t kMaxWorkers = 1 << 16, kMaxIndex = ~std::uint32_t{0};
constexpr std::int64_t kMaxTraceTime = std::int64_t{1} << 61;
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 60;
constexpr auto kLastKind = static_cast<std::uint64_t>(TraceEvent::Kind::wait);

void write(ByteWriter& out, const TraceEvent& e, std::int64_t& before) {
  out.number(static_cast<std::uint64_t>(e.kind) << 2 | std::uint64_t{e.verifying} << 1 |
             std::uint64_t{e.unfinished});
  out.number(e.ops);
  out.number(static_cast<std::uint64_t>(e.worker));
  out.number(e.run);
  out.number(e.step);
  out.number(e.name);
  out.number(static_cast<std::uint64_t>(e.peer.value() + 1));
  out.number(e.message);
  out.signed_number(e.begin_ns - before);
  out.number(static_cast<std::uint64_t>(e.end_ns - e.begin_ns));
  out.number(static_cast<std::uint64_t>(e.bytes));
  before = e.begin_ns;
}

TraceEvent read(ByteReader& in, const RankTrace& trace, int ranks, std::int64_t& before) {
  TraceEvent e;
  const std::uint64_t kind = in.number(kLastKind << 2 | 3, "kind of event");
  e.kind = static_cast<TraceEvent::Kind>(kind >> 2);
  e.verifying = (kind & 2) != 0;
  e.unfinished = (kind & 1) != 0;
  e.ops = static_cast<std::uint16_t>(in.number(0xffff, "ops"));
  e.worker = static_cast<std::int32_t>(in.number(kMaxWorkers, "worker"));
  e.run = static_cast<std::uint32_t>(in.number(kMaxIndex, "run"));
  e.step = static_cast<std::uint32_t>(in.number(kMaxIndex, "step"));
  e.name = static_cast<std::uint32_t>(in.number(trace.names.size() - 1, "name"));
  e.peer = Rank(static_cast<int>(in.number(static_cast<std::uint64_t>(ranks), "peer")) - 1);
  e.message = in.number(~std::uint64_t{0}, "message");
  e.begin_ns = before + in.signed_number(-kMaxTraceTime, kMaxTraceTime, "begin");
  const auto length = static_cast<std::int64_t>(in.number(kMaxTraceTime, "length"));
  e.bytes = static_cast<Index>(in.number(kMaxBytes, "bytes"));
  if (e.begin_ns < -kMaxTraceTime || e.begin_ns > kMaxTraceTime - length)
    in.fail("time out of range");
  if (e.worker > 0 && e.worker >= trace.workers) in.fail("no such worker");
  e.end_ns = e.begin_ns + length;
  before = in.ok() ? e.begin_ns : 0;
  return e;
}

constexpr std::size_t kMaxText = 400;

/// The numbers of a WhySlow, in the order in which they are sent.
template <class T>
auto seconds_of(T& why) {
  return std::array{&why.seconds,
                    &why.bound_seconds,
                    &why.behind_seconds,
                    &why.waited_seconds,
                    &why.late_seconds,
                    &why.link_seconds,
                    &why.fastest_link_per_second,
                    &why.clock_error_seconds};
}
template <class T>
auto ranks_of(T& why) {
  return std::array{&why.slowest_rank, &why.late_rank, &why.link_from, &why.link_to};
}
template <class T>
auto counts_of(T& why) {
  return std::array{&why.link_bytes, &why.dropped};
}
template <class T>
auto texts_of(T& why) {
  return std::array{&why.bound_by, &why.problem};
}

}  // namespace

std::vector<std::byte> encode_trace(const RankTrace& trace) {
  ByteWriter out;
  out.number(kVersion);
  out.number(static_cast<std::uint64_t>(trace.workers));
  out.number(static_cast<std::uint64_t>(trace.dropped));
  out.text(std::string_view(trace.host).substr(0, kMaxHostBytes));
  out.number(trace.names.size() - 1);
  for (std::size_t i = 1; i < trace.names.size(); ++i) out.text(trace.names[i]);
  out.number(trace.events.size());
  std::int64_t before = 0;
  for (const TraceEvent& event : trace.events) write(out, event, before);
  return std::move(out).finish();
}

Result<RankTrace> decode_trace(std::span<const std::byte> bytes, Rank rank, int ranks) {
  ByteReader in(bytes, fmt::format("the trace of rank {}", rank.value()));
  RankTrace trace;
  trace.rank = rank;
  const std::uint64_t version = in.number(~std::uint64_t{0}, "version");
  if (in.ok() && version != kVersion) in.fail("another version of reshard");
  trace.workers = static_cast<std::int32_t>(in.number(kMaxWorkers, "workers"));
  trace.dropped = static_cast<Index>(in.number(kMaxBytes, "dropped events"));
  trace.host = in.text(kMaxHostBytes, "host");
  const std::size_t names = in.count(1, "names");
  if (names >= TraceRecorder::kMaxNames) in.fail("too many names");
  for (std::size_t i = 0; i < names && in.ok(); ++i)
    trace.names.emplace_back(in.text(TraceRecorder::kMaxNameBytes, "name"));
  const std::size_t events = in.count(kLeastEventBytes, "events");
  if (in.ok()) trace.events.reserve(events);
  std::int64_t before = 0;
  for (std::size_t i = 0; i < events && in.ok(); ++i)
    trace.events.push_back(read(in, trace, ranks, before));
  RESHARD_TRY(in.finish());
  return trace;
}

std::vector<std::byte> encode_why_slow(const WhySlow& why) {
  ByteWriter out;
  for (const double* value : seconds_of(why)) out.number(std::bit_cast<std::uint64_t>(*value));
  for (const Rank* rank : ranks_of(why)) out.number(static_cast<std::uint64_t>(rank->value() + 1));
  for (const Index* count : counts_of(why)) out.number(static_cast<std::uint64_t>(*count));
  for (const std::string* text : texts_of(why))
    out.text(std::string_view(*text).substr(0, kMaxText));
  return std::move(out).finish();
}

Result<WhySlow> decode_why_slow(std::span<const std::byte> bytes, int ranks) {
  ByteReader in(bytes, "what rank 0 found in the trace");
  WhySlow why;
  for (double* value : seconds_of(why)) {
    *value = std::bit_cast<double>(in.number(~std::uint64_t{0}, "time"));
    if (!std::isfinite(*value) || *value < 0) in.fail("a time is not a number");
  }
  for (Rank* rank : ranks_of(why))
    *rank = Rank(static_cast<int>(in.number(static_cast<std::uint64_t>(ranks), "rank")) - 1);
  for (Index* count : counts_of(why)) *count = static_cast<Index>(in.number(kMaxBytes, "count"));
  for (std::string* text : texts_of(why)) *text = in.text(kMaxText, "text");
  RESHARD_TRY(in.finish());
  return why;
}

}  // namespace reshard::trace
