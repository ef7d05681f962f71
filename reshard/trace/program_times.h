// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "reshard/program/program.h"
#include "reshard/trace/recorder.h"

namespace reshard::trace {

/// The kinds of waits of an executor's workers.
enum class Awaited : std::uint8_t {
  tiles,     ///< no tile could run: those left wait for messages or for tiles of others.
  messages,  ///< worker 0: the transport moves bytes, or the oldest exchange is not complete.
};

/// Times the runs of one program, and makes events of them when a run is over. Workers record into
/// memory of their own, allocated once; waits of less than a microsecond are left out.
class ProgramTimes {
 public:
  /// Names the local tensor of a source or target buffer.
  using Names = std::function<std::string(const ProgramBuffer&)>;
  /// Borrows the program and the recorder. `names` may be null.
  ProgramTimes(const Program& program, int workers, TraceRecorder& recorder, const Names& names);

  /// Begins a run; called by the thread that runs the program.
  void start();
  /// Record the times of a step, and of a wait; called by the worker that runs or waits.
  void begin(StepId s, int worker);
  void end(StepId s);
  void waited(int worker, Awaited what, StepId step, std::int64_t since_ns);
  /// The run is over, or failed; no worker is active any more. Adds its events to the recorder.
  void finish(bool verifying);

 private:
  struct StepSpan {
    std::int64_t begin_ns = 0, end_ns = 0;  ///< 0: not yet.
    int worker = 0;
  };
  struct WaitSpan {
    Awaited what = Awaited::tiles;
    StepId step;
    std::int64_t begin_ns = 0, end_ns = 0;
  };
  struct Waits {
    std::vector<WaitSpan> spans;
    bool is_last = false;  ///< the worker began no step since the last of them.
    Index dropped = 0;
  };
  /// The facts of a tile that the program alone determines.
  struct TileFacts {
    Index bytes = 0;
    std::uint32_t name = 0;
    std::uint16_t ops = 0;
    std::uint32_t first_read = 0, end_read = 0;
  };
  struct PeerRead {
    Rank peer;
    Index bytes = 0;
  };
  class FactFinder;

  void add_step(std::size_t s, TraceEvent event);

  const Program& program_;
  TraceRecorder& recorder_;
  std::vector<TileFacts> tiles_;  ///< by step.
  std::vector<PeerRead> reads_;
  std::vector<std::uint32_t> message_names_;
  std::vector<StepSpan> steps_;
  std::vector<Waits> waits_;  ///< by worker.
  std::uint32_t waits_for_tiles_ = 0, waits_for_messages_ = 0;
};

/// Times one run; does nothing without times.
class RunScope {
 public:
  RunScope(ProgramTimes* times, bool verifies) : times_(times), verifies_(verifies) {
    if (times_ != nullptr) times_->start();
  }
  ~RunScope() {
    if (times_ != nullptr) times_->finish(verifies_);
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  ProgramTimes* times_;
  bool verifies_;
};

/// Records how long a worker waits, from its construction to its destruction; nothing if `times`
/// is null.
class WaitScope {
 public:
  WaitScope(ProgramTimes* times, int worker, Awaited what, StepId step = StepId(0))
      : times_(times), worker_(worker), what_(what), step_(step) {
    if (times_ != nullptr) since_ns_ = trace_now_ns();
  }
  ~WaitScope() {
    if (times_ != nullptr) times_->waited(worker_, what_, step_, since_ns_);
  }
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  ProgramTimes* times_;
  int worker_;
  Awaited what_;
  StepId step_;
  std::int64_t since_ns_ = 0;
};

}  // namespace reshard::trace
