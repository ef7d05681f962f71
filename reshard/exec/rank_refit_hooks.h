// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "reshard/exec/rank_refit.h"
#include "reshard/program/compile.h"

namespace reshard {

class ConversionVerifier;
class TraceRecorder;
class WorkerPool;

/// Conversions on the way, of a plan between layouts of which at least one is not in memory.
struct RefitConversions {
  SideConversion before, after;
  /// The approximate bytes of values that a thread converts at once; equal on all ranks.
  Index unit_bytes = Index{512} << 10;
};

/// The hooks that a session (refit/) plugs into a RankRefit. Internal: users set RankRefitOptions
/// only. Everything is borrowed and must outlive the RankRefit.
struct RankRefitHooks {
  /// Staging memory for messages. Refits that never run at the same time may share it. A refit that
  /// needs more allocates its own; message_staging() is always enough. If the rank has
  /// memory on a GPU: in that memory if the transport takes messages there, or else pinned.
  std::span<std::byte> staging = {};
  /// Runs the copies instead of a pool of `RankRefitOptions::threads`; null: the refit makes one.
  /// Refits that never run at the same time may share it.
  WorkerPool* pool = nullptr;
  /// Conversions of the plan's two sides; null: none. The buffers that the refit gets are then of
  /// the form that is in memory (SideConversion). All ranks have one, or none does.
  const RefitConversions* conversions = nullptr;
  /// Gets the events of each run; null: nothing is timed.
  TraceRecorder* trace = nullptr;
};

}  // namespace reshard
