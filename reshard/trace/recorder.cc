// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/recorder.h"

#include <algorithm>

namespace reshard {
namespace {

constexpr std::size_t kAllEvents = std::size_t{1} << 22;
constexpr std::size_t kLeastEvents = std::size_t{1} << 12, kMaxEvents = std::size_t{1} << 18;

}  // namespace

TraceRecorder::TraceRecorder(std::size_t capacity) : capacity_(capacity) {
  trace_.events.reserve(capacity);
}

std::size_t TraceRecorder::capacity_of(int ranks) {
  return std::clamp(kAllEvents / static_cast<std::size_t>(std::max(1, ranks)), kLeastEvents,
                    kMaxEvents);
}

void TraceRecorder::restart() {
  trace_.events.clear();
  trace_.dropped = 0;
  runs_ = 0;
}

void TraceRecorder::add(const TraceEvent& event) {
  if (trace_.events.size() >= capacity_) return drop(1);
  trace_.events.push_back(event);
  trace_.events.back().verifying = verifying_;
}

void TraceRecorder::add(TraceEvent::Kind kind, std::string_view text, std::int64_t begin_ns,
                        std::int64_t end_ns) {
  TraceEvent event;
  event.kind = kind;
  event.name = name(text);
  event.begin_ns = begin_ns;
  event.end_ns = end_ns;
  add(event);
}

std::uint32_t TraceRecorder::name(std::string_view text) {
  text = text.substr(0, kMaxNameBytes);
  if (text.empty()) return 0;
  if (const auto known = index_.find(text); known != index_.end()) return known->second;
  if (trace_.names.size() >= kMaxNames || names_bytes_ > kMaxNamesBytes - text.size()) return 0;
  names_bytes_ += text.size();
  const auto number = static_cast<std::uint32_t>(trace_.names.size());
  trace_.names.emplace_back(text);
  index_.emplace(text, number);
  return number;
}

void TraceRecorder::note_rank(Rank rank, std::string host) {
  trace_.rank = rank;
  trace_.host = std::move(host);
}

void TraceRecorder::note_workers(int workers) {
  trace_.workers = std::max(trace_.workers, workers);
}

}  // namespace reshard
