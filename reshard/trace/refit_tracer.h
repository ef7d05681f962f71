// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/trace/recorder.h"
#include "reshard/trace/trace_options.h"
#include "reshard/trace/why_slow.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// Traces the refits of one rank: records, gathers, and writes. Used by the thread that refits.
class RefitTracer {
 public:
  /// Allocates memory for the events. @pre options.path is not empty
  RefitTracer(TraceOptions options, Rank me, int ranks);

  /// To which the refit adds events.
  TraceRecorder& recorder() { return recorder_; }
  /// Why rank 0 cannot write the file; empty if it can, and on other ranks.
  std::string trouble() const;

  /// Collective. Aligns the clocks for the first time. Errors: the control plane's.
  Result<> align_clocks(ControlPlane& control, Deadline deadline);
  /// A refit begins.
  void restart(std::int64_t version);
  /// Collective, after a refit, while no message is in progress. Aligns the clocks, and has rank 0
  /// write the events of all ranks. A file that cannot be written is no error: see
  /// WhySlow::problem. Errors: those of the planes; `corrupt`.
  Result<> finish(Transport& transport, ControlPlane& control, Deadline deadline);
  /// Not collective, after a refit that failed: writes the events of this rank, with its clock as
  /// it was aligned last, to "PATH.rankN". Errors are ignored.
  void finish_alone();

  /// The analysis of the last finished trace, identical on all ranks; null before the first.
  const WhySlow* why_slow() const { return why_ ? &*why_ : nullptr; }

 private:
  WhySlow examine(GroupTrace trace) const;

  TraceOptions options_;
  Rank me_;
  TraceRecorder recorder_;
  std::int64_t version_ = -1;
  std::int64_t offset_ns_ = 0, error_ns_ = 0;  ///< of this rank's clock.
  std::optional<WhySlow> why_;
};

/// Adds a phase to the trace, from its construction to its destruction; nothing if the tracer is
/// null.
class TracedPhase {
 public:
  TracedPhase(RefitTracer* tracer, std::string_view name) : tracer_(tracer), name_(name) {
    if (tracer_ != nullptr) begin_ns_ = trace_now_ns();
  }
  ~TracedPhase() {
    if (tracer_ != nullptr)
      tracer_->recorder().add(TraceEvent::Kind::phase, name_, begin_ns_, trace_now_ns());
  }
  TracedPhase(const TracedPhase&) = delete;
  TracedPhase& operator=(const TracedPhase&) = delete;

 private:
  RefitTracer* tracer_;
  std::string_view name_;
  std::int64_t begin_ns_ = 0;
};

}  // namespace reshard
