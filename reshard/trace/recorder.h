// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "reshard/trace/events.h"

namespace reshard {

/// Collects the events of one rank's refits, one refit at a time. Used by the thread that runs the
/// refit. Memory for the events is allocated once; names are kept from refit to refit.
class TraceRecorder {
 public:
  /// For at most `capacity` events of a refit; later ones are counted and dropped.
  explicit TraceRecorder(std::size_t capacity);

  /// A capacity with which the events of all ranks of a group fit in one rank's memory.
  static std::size_t capacity_of(int ranks);

  /// Forgets all events: a refit begins.
  void restart();
  /// The number of the next program, from 0.
  std::uint32_t begin_run() { return runs_++; }
  void add(const TraceEvent& event);
  /// An event of kind `phase` or, with Kind::wait, of worker 0.
  void add(TraceEvent::Kind kind, std::string_view name, std::int64_t begin_ns,
           std::int64_t end_ns);
  /// Counts events that something else had no room for.
  void drop(Index events) { trace_.dropped += events; }
  /// The index of this text in RankTrace::names, which it joins at the first call; 0 once there are
  /// kMaxNames or kMaxNamesBytes. Cut after kMaxNameBytes.
  std::uint32_t name(std::string_view text);
  void note_rank(Rank rank, std::string host);
  void note_workers(int workers);
  /// The program that runs now only verifies.
  void set_verifying(bool verifying) { verifying_ = verifying; }

  const RankTrace& trace() const { return trace_; }

  static constexpr std::size_t kMaxNames = 1 << 18, kMaxNameBytes = 400,
                               kMaxNamesBytes = std::size_t{8} << 20;

 private:
  std::size_t capacity_;
  RankTrace trace_;
  std::map<std::string, std::uint32_t, std::less<>> index_;
  std::size_t names_bytes_ = 0;
  std::uint32_t runs_ = 0;
  bool verifying_ = false;
};

}  // namespace reshard
