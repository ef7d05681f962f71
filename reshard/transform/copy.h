// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "reshard/base/value_map.h"
#include "reshard/layout/strided.h"

namespace reshard {

/// The level of the memory hierarchy in which written data should end up.
enum class CopyHint {
  /// In memory, past the caches: for data that exceeds the caches and is not read soon. Its stores
  /// are weakly ordered: call copy_fence() before telling another thread or process that they are
  /// done.
  streaming,
  /// In the caches: for small data, or data that is read next. Ordered like any store.
  cached,
};

/// Makes all streaming stores of this thread visible before any later store. Cheap if there are
/// none.
void copy_fence();

/// Copies n bytes. @pre the ranges do not overlap; n >= 0
void copy_bytes(std::byte* dst, const std::byte* src, Index n, CopyHint hint);

/// Executes `copy` between the buffers that begin at `src` and `dst`. Allocates nothing.
///
/// @pre every run lies inside the buffers; no byte that is written is also read, or written twice
void run_copy(const StridedCopy& copy, const std::byte* src, std::byte* dst, CopyHint hint);

/// A copy, the two buffers that it runs between, and the conversion of its values.
struct CopyTask {
  StridedCopy copy;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  Conversion conversion = {};
};

/// Executes all tasks, in any order, each as run_copy or (if its values are converted)
/// run_conversion would. Allocates nothing.
///
/// This is faster than one call per task if neighbouring tasks in the span have adjacent short
/// runs:
/// - Column slices of one source tensor for many destinations: each source row is read once, in
/// order.
/// - Column slices of many sources for one destination tensor: each destination row is written
/// once,
///   in whole cache lines.
/// - Many small contiguous copies: their memory traffic overlaps.
///
/// So list tasks of one tensor together, in order of source or destination address.
/// @pre as for run_copy, for the runs of all tasks together
void run_copies(std::span<const CopyTask> tasks, CopyHint hint);

}  // namespace reshard
