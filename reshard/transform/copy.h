// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "reshard/base/value_map.h"
#include "reshard/layout/strided.h"

namespace reshard {

/// Where the caller wants the destination to end up.
enum class CopyHint {
  /// In memory, past the caches: for data larger than the caches that nobody reads soon. The stores
  /// are
  /// weakly ordered: call copy_fence() before telling another thread or process that they are done.
  streaming,
  /// In the cache: for small data, or data that is read next. Ordered like any store.
  cached,
};

/// Makes all streaming stores of this thread visible before any store that follows. Cheap when
/// there are none.
void copy_fence();

/// Copies n bytes. @pre the ranges do not overlap; n >= 0
void copy_bytes(std::byte* dst, const std::byte* src, Index n, CopyHint hint);

/// Executes `copy` between the buffers that begin at `src` and `dst`. Allocates nothing.
///
/// @pre every run lies inside the buffers; no byte that is written is also read, or written twice
void run_copy(const StridedCopy& copy, const std::byte* src, std::byte* dst, CopyHint hint);

/// One copy and the two buffers that it runs between, and what becomes of its values on the way.
struct CopyTask {
  StridedCopy copy;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  Conversion conversion = {};
};

/// Executes all tasks: the effect of run_copy on each (or of run_conversion, where its values are
/// converted), in any order. Allocates nothing.
///
/// Faster than one by one where tasks that follow each other in the span have short runs side by
/// side:
/// - the same loops over the same source rows (all column slices of a tensor, towards many
/// destinations):
///   a row is read once, from its begin to its end;
/// - the same loops over the same destination rows (column slices from many sources into one
/// tensor): a
///   row is written once, in whole cache lines;
/// - many small contiguous copies: their memory traffic overlaps.
/// So the caller lists tasks of one tensor together, in order of source (or destination) address.
/// @pre as for run_copy, and what holds between the runs of one copy holds between those of all
/// tasks
void run_copies(std::span<const CopyTask> tasks, CopyHint hint);

}  // namespace reshard
