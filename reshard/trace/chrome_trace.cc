// SPDX-License-Identifier: Apache-2.0
#include "reshard/trace/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "reshard/trace/json_text.h"
#include "reshard/trace/message_pairs.h"

namespace reshard::trace {
namespace {

using Kind = TraceEvent::Kind;

/// Threads that are no workers: the phases, and messages.
constexpr int kPhases = 100'000, kMessages = 100'001;

bool is_message(const TraceEvent& e) { return e.kind == Kind::send || e.kind == Kind::receive; }

std::string ops_text(const TraceEvent& e) {
  constexpr const char* kNames[] = {"copy", "get",      "clear",     "amax",
                                    "max",  "quantise", "dequantise"};
  std::string text;
  const auto add = [&](const char* name) { text += (text.empty() ? "" : "+") + std::string(name); };
  if ((e.ops & TraceEvent::kUnpacks) != 0) add("unpack");
  for (std::size_t i = 0; i < std::size(kNames); ++i)
    if ((e.ops >> i & 1) != 0) add(kNames[i]);
  if ((e.ops & TraceEvent::kPacks) != 0) add("pack");
  return text.empty() ? "join" : text;
}

/// Gives the events of one rank their threads. Messages that are in flight at the same time are on
/// several threads, since slices of a thread must not overlap.
class Threads {
 public:
  explicit Threads(const RankTrace& rank) : of_event_(rank.events.size(), 0) {
    std::map<std::pair<Rank, Kind>, std::vector<std::size_t>> messages;
    for (std::size_t i = 0; i < rank.events.size(); ++i) {
      const TraceEvent& e = rank.events[i];
      of_event_[i] = e.kind == Kind::phase ? kPhases : e.worker;
      if (is_message(e)) messages[{e.peer, e.kind}].push_back(i);
    }
    for (auto& [peer, events] : messages) {
      std::ranges::stable_sort(events, {}, [&](std::size_t i) { return rank.events[i].begin_ns; });
      place(rank, peer.first, peer.second, events);
    }
  }
  int of(std::size_t event) const { return of_event_[event]; }
  /// Names of the threads of messages, from kMessages on.
  const std::vector<std::string>& names() const { return names_; }

 private:
  void place(const RankTrace& rank, Rank peer, Kind kind, const std::vector<std::size_t>& events) {
    std::set<std::pair<std::int64_t, int>> free_at;  ///< times, and threads.
    for (const std::size_t i : events) {
      const TraceEvent& e = rank.events[i];
      int thread = kMessages + static_cast<int>(names_.size());
      if (!free_at.empty() && free_at.begin()->first <= e.begin_ns) {
        thread = free_at.begin()->second;
        free_at.erase(free_at.begin());
      } else {
        names_.push_back(fmt::format("{} rank {}", kind == Kind::send ? "send to" : "receive from",
                                     peer.value()));
      }
      free_at.emplace(std::max(e.end_ns, e.begin_ns + 1), thread);
      of_event_[i] = thread;
    }
  }

  std::vector<int> of_event_;
  std::vector<std::string> names_;
};

class ChromeWriter {
 public:
  explicit ChromeWriter(const GroupTrace& trace) : trace_(trace) {
    origin_ = std::numeric_limits<std::int64_t>::max();
    for (const RankTrace& rank : trace.ranks) {
      index_.emplace(rank.rank, threads_.size());
      threads_.emplace_back(rank);
      dropped_ += rank.dropped;
      for (const TraceEvent& e : rank.events) origin_ = std::min(origin_, e.begin_ns);
    }
  }

  std::string write() {
    out_ = "{\"displayTimeUnit\": \"ms\",\n\"otherData\": ";
    out_ += fmt::format("{{\"version\": {}, \"clock_error_us\": {}, \"dropped_events\": {}}},\n",
                        trace_.version, us(trace_.clock_error_ns), dropped_);
    out_ += "\"traceEvents\": [";
    for (std::size_t r = 0; r < trace_.ranks.size(); ++r) {
      write_names(r);
      write_slices(r);
      write_counter(trace_.ranks[r]);
    }
    write_flows();
    return std::move(out_) + "\n]}\n";
  }

 private:
  static std::string us(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }
  std::string time(std::int64_t ns) const { return us(ns - origin_); }

  /// Begins an event; the caller appends the rest, from a comma on.
  void begin(char phase, Rank rank) {
    out_ += std::exchange(is_first_, false) ? "\n" : ",\n";
    out_ += fmt::format("{{\"ph\": \"{}\", \"pid\": {}", phase, rank.value());
  }

  void name(Rank rank, int thread, const char* what, std::string_view text) {
    begin('M', rank);
    out_ += fmt::format(", \"tid\": {}, \"name\": \"{}\", \"args\": {{\"name\": ", thread, what);
    append_json_string(out_, text);
    out_ += "}}";
  }

  void write_names(std::size_t r) {
    const RankTrace& rank = trace_.ranks[r];
    name(rank.rank, 0, "process_name", fmt::format("rank {} on {}", rank.rank.value(), rank.host));
    name(rank.rank, kPhases, "thread_name", "phases");
    for (int w = 0; w < rank.workers; ++w)
      name(rank.rank, w, "thread_name", fmt::format("worker {}", w));
    int thread = kMessages;
    for (const std::string& text : threads_[r].names())
      name(rank.rank, thread++, "thread_name", text);
  }

  void write_slices(std::size_t r) {
    const RankTrace& rank = trace_.ranks[r];
    for (std::size_t i = 0; i < rank.events.size(); ++i) {
      const TraceEvent& e = rank.events[i];
      // Reads are in the arguments of their tile, and exchanges in those of their messages.
      if (e.kind == Kind::read || e.kind == Kind::exchange) continue;
      begin('X', rank.rank);
      out_ += fmt::format(
          ", \"tid\": {}, \"ts\": {}, \"dur\": {}, \"cat\": \"{}\", \"name\": ", threads_[r].of(i),
          time(e.begin_ns), us(e.end_ns - e.begin_ns), category(e));
      append_json_string(out_, title(rank, e));
      out_ += ", \"args\": {";
      write_arguments(rank, i);
      out_ += "}}";
    }
  }

  static const char* category(const TraceEvent& e) {
    switch (e.kind) {
      case Kind::tile: return "tile";
      case Kind::send:
      case Kind::receive: return "message";
      case Kind::barrier: return "barrier";
      case Kind::wait: return "wait";
      default: return "phase";
    }
  }

  static std::string title(const RankTrace& rank, const TraceEvent& e) {
    switch (e.kind) {
      case Kind::tile: return ops_text(e);
      case Kind::send: return fmt::format("send to {}", e.peer.value());
      case Kind::receive: return fmt::format("receive from {}", e.peer.value());
      case Kind::barrier: return "barrier";
      case Kind::wait: return "wait for " + rank.names[e.name];
      default: return rank.names[e.name];
    }
  }

  void write_arguments(const RankTrace& rank, std::size_t i) {
    const TraceEvent& e = rank.events[i];
    if (e.kind == Kind::phase) {
      out_ += fmt::format("\"version\": {}", trace_.version);
    } else {
      out_ += fmt::format("\"run\": {}, \"step\": {}", e.run, e.step);
    }
    if (e.kind == Kind::tile || is_message(e)) {
      out_ += fmt::format(", \"bytes\": {}", e.bytes);
      if (e.end_ns > e.begin_ns)
        out_ +=
            fmt::format(", \"gb_per_s\": {:.3f}",
                        static_cast<double>(e.bytes) / static_cast<double>(e.end_ns - e.begin_ns));
      if (e.name != 0) {
        out_ += ", \"tensor\": ";
        append_json_string(out_, rank.names[e.name]);
      }
    }
    if (is_message(e))
      out_ += fmt::format(", \"peer\": {}, \"message\": {}", e.peer.value(), e.message);
    if (e.kind == Kind::tile) write_reads(rank, i + 1);
    if (e.verifying) out_ += ", \"verifying\": true";
    if (e.unfinished) out_ += ", \"unfinished\": true";
  }

  /// The reads of the tile before event `i`.
  void write_reads(const RankTrace& rank, std::size_t i) {
    std::string reads;
    for (; i < rank.events.size() && rank.events[i].kind == Kind::read; ++i)
      reads += fmt::format("{}{{\"from\": {}, \"bytes\": {}}}", reads.empty() ? "" : ", ",
                           rank.events[i].peer.value(), rank.events[i].bytes);
    if (!reads.empty()) out_ += ", \"reads\": [" + reads + "]";
  }

  /// Bytes of messages in flight.
  void write_counter(const RankTrace& rank) {
    std::map<std::int64_t, Index> changes;
    for (const TraceEvent& e : rank.events) {
      if (!is_message(e)) continue;
      changes[e.begin_ns] += e.bytes;
      changes[e.end_ns] -= e.bytes;
    }
    Index bytes = 0;
    for (const auto& [when, change] : changes) {
      bytes += change;
      begin('C', rank.rank);
      out_ +=
          fmt::format(", \"ts\": {}, \"name\": \"bytes in flight\", \"args\": {{\"bytes\": {}}}}}",
                      time(when), bytes);
    }
  }

  void write_flow(char phase, std::size_t flow, Rank rank, const TraceEvent& e, std::int64_t when) {
    const std::size_t r = index_.at(rank);
    const auto event = static_cast<std::size_t>(&e - trace_.ranks[r].events.data());
    begin(phase, rank);
    out_ += fmt::format(
        ", \"tid\": {}, \"ts\": {}, \"id\": {}, \"cat\": \"message\", \"name\": \"message\"{}}}",
        threads_[r].of(event), time(when), flow, phase == 'f' ? ", \"bp\": \"e\"" : "");
  }

  void write_flows() {
    std::size_t flow = 0;
    for (const MessagePair& pair : message_pairs(trace_)) {
      const TraceEvent &sent = *pair.sent, &received = *pair.received;
      // An arrow ends in the slice that contains its time, and a slice does not contain its end.
      const std::int64_t arrival = std::max(received.end_ns - 1, received.begin_ns);
      write_flow('s', ++flow, pair.from, sent, sent.begin_ns);
      write_flow('f', flow, pair.to, received, arrival);
    }
  }

  const GroupTrace& trace_;
  std::vector<Threads> threads_;
  std::map<Rank, std::size_t> index_;  ///< in trace_.ranks.
  std::int64_t origin_ = 0;
  Index dropped_ = 0;
  bool is_first_ = true;
  std::string out_;
};

}  // namespace

std::string chrome_trace(const GroupTrace& trace) { return ChromeWriter(trace).write(); }

}  // namespace reshard::trace
