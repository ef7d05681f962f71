// SPDX-License-Identifier: Apache-2.0
// The streaming kernels behind copy.h: one table of functions for each instruction set.
//
// Streaming stores are fast only in whole cache lines, and memory is fast only when many lines are
// under way. Hence two ways to copy:
// - Long runs: eight pieces advance together, line by line. Eight streams keep more lines under way
//   than the one that the processor would prefetch by itself. Where that is not so
//   (reads_best_in_order) each run is one piece, copied by itself.
// - Short runs: one after the other, with prefetches as far ahead as their rows ask for.
// A line that begins in one run and ends in the next is put together in a register where both are
// known. Where nobody else provides the rest of a line, its bytes are written by smaller stores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/transform/simd.h"

namespace reshard::kernels {

inline constexpr std::size_t kLine = 64;
/// Pieces that advance together.
inline constexpr int kPieces = 8;
/// Shortest run that is worth being a piece, longest that is one piece, and the piece to cut longer
/// ones into. Bytes.
inline constexpr std::size_t kLongRun = 1024, kWholePiece = 16384, kPiece = 4096;
/// Lines at the begin of a piece that are prefetched while the pieces before it are copied.
inline constexpr std::size_t kFirstLines = 4;

/// What differs between processors (see reads_best_in_order).
struct CopyTuning {
  int pieces;                  ///< that advance together: kPieces or 1.
  std::ptrdiff_t longest_row;  ///< of tasks that are copied row by row together. Bytes.
  std::ptrdiff_t near_ahead;   ///< how far to prefetch in a source that is read as it lies. Bytes.
};
const CopyTuning& copy_tuning();

/// Whole lines to copy: `dst` is at a line's begin.
struct Piece {
  const std::byte* src;
  std::byte* dst;
  std::size_t lines;
};

/// Pieces that wait until there are `together` of them, and then until the first lines of as many
/// others can be prefetched while they are copied.
struct PieceBatch {
  int together = copy_tuning().pieces;
  Piece queued[kPieces], waiting[kPieces];
  int num_queued = 0, num_waiting = 0;
};

/// A run of `bytes` and its neighbours in the destination.
struct Run {
  const std::byte* src;
  std::byte* dst;
  std::size_t bytes;
  /// Source of the run that begins where this one ends in the destination and has at least kLine
  /// bytes, or null. The line on the border is then written with this run, and the other is marked.
  const std::byte* next = nullptr;
  /// True when the run that ends where this one begins writes the line on the border.
  bool head_done = false;
};

/// The same run repeated `rows` times, for interleaving with others row by row.
struct RowTask {
  const std::byte* src;
  std::byte* dst;
  std::size_t bytes;  ///< of one run
  std::ptrdiff_t src_stride, dst_stride;
  /// The task whose run follows this one's in the destination (see Run::next), or -1; it may be
  /// this one.
  int next = -1;
  /// 1 when that run is in the next row, 0 when in the same.
  int next_row = 0;
  /// As Run::head_done, for the rows after the first (prev_row 1) or for all rows (prev_row 0).
  bool has_prev = false;
  int prev_row = 0;
  /// Distance from a byte of the source to the one to prefetch with it, in rows before
  /// `ahead_until`. Bytes.
  std::ptrdiff_t ahead = 0;
  std::ptrdiff_t ahead_until = 0;
};

struct CopyKernels {
  /// Writes the run's ends and queues its lines; runs the batch whenever it is full.
  void (*add_run)(PieceBatch&, const Run&);
  /// Copies what is queued.
  void (*flush)(PieceBatch&);
  /// Copies `rows` rows of all tasks, row by row. `near` says for how soon the prefetches are.
  void (*rows)(const RowTask* tasks, int num_tasks, std::ptrdiff_t rows, bool near);
};

/// The tables. @pre the processor has the instructions
const CopyKernels& avx2_copy_kernels();
const CopyKernels& avx512_copy_kernels();

}  // namespace reshard::kernels
