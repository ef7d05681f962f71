// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/base/ids.h"
#include "reshard/index/interval.h"

namespace reshard {

/// The steady clock of this process, in nanoseconds; not negative.
inline std::int64_t trace_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// An action or a wait of one rank in a refit.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    phase,     ///< of a session; `name` says which.
    tile,      ///< a tile of a program. `name`: the local tensor of most of its bytes.
    read,      ///< part of a tile, with its times: what it reads from the memory of `peer`.
    exchange,  ///< messages that began together; complete when all are.
    send,      ///< a message of an exchange, with its times: a transport tells no more. `name`: the
               ///< local tensor, if the message is not packed.
    receive,
    barrier,  ///< from this rank's call until all ranks had called.
    wait,     ///< a worker had nothing to do; `name` says what it waited for.
  };
  /// Bits of `ops`: ProgramOp::Kind as a shift for what a tile does, and these.
  static constexpr std::uint16_t kPacks = 1U << 14, kUnpacks = 1U << 15;

  Kind kind = Kind::phase;
  bool verifying = false;     ///< in a refit that only verifies: its bytes are not delivered.
  bool unfinished = false;    ///< an error ended it.
  std::uint16_t ops = 0;      ///< of a tile.
  std::int32_t worker = 0;    ///< worker 0 uses the transport.
  std::uint32_t run = 0;      ///< number of the program since the refit began; alike on all ranks.
  std::uint32_t step = 0;     ///< of the program; of a wait: the exchange that it waits for.
  std::uint32_t name = 0;     ///< index in RankTrace::names.
  Rank peer{-1};              ///< of a read and of a message; otherwise -1.
  std::uint64_t message = 0;  ///< id: sender and receiver have the same.
  std::int64_t begin_ns = 0, end_ns = 0;  ///< on one clock; begin_ns <= end_ns.
  Index bytes = 0;
  friend bool operator==(const TraceEvent&, const TraceEvent&) = default;
};

/// The events of one rank in one refit, in the order in which they were recorded.
struct RankTrace {
  Rank rank;
  std::string host;  ///< its name, for people.
  std::int32_t workers = 0;
  Index dropped = 0;                      ///< events beyond the recorder's capacity.
  std::vector<std::string> names = {""};  ///< names[0] is empty.
  std::vector<TraceEvent> events;
  friend bool operator==(const RankTrace&, const RankTrace&) = default;
};

/// The refit of a group. All times are on the clock of rank 0.
struct GroupTrace {
  std::vector<RankTrace> ranks;     ///< by rank; or one rank's only, if the refit failed.
  std::int64_t version = -1;        ///< of the refit.
  std::int64_t clock_error_ns = 0;  ///< the most that the clock of any rank may be off.
};

}  // namespace reshard
