// SPDX-License-Identifier: Apache-2.0
// The streaming kernels behind copy.h: one table of functions for each instruction set.
//
// Streaming stores are fast only in whole cache lines, and memory is fast only with many lines in
// flight. Hence two ways to copy:
// - Long runs: eight pieces advance together, line by line. Eight streams keep more lines in flight
//   than the single one that the hardware prefetches by itself. On processors where that is slower
//   (reads_best_in_order) each run is one piece, copied by itself.
// - Short runs: one after the other, prefetching as far ahead as their rows require.
// A line that begins in one run and ends in the next is assembled in a register if both are known.
// Otherwise the bytes of an incomplete line are written by smaller stores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reshard/transform/simd.h"

namespace reshard::kernels {

inline constexpr std::size_t kLine = 64;
/// Pieces that advance together.
inline constexpr int kPieces = 8;
/// The shortest run to make a piece of, the longest run that stays one piece, and the size of the
/// pieces that longer runs are cut into. Bytes.
inline constexpr std::size_t kLongRun = 1024, kWholePiece = 16384, kPiece = 4096;
/// Lines at the beginning of a piece that are prefetched while the preceding pieces are copied.
inline constexpr std::size_t kFirstLines = 4;

/// Parameters that depend on the processor (see reads_best_in_order).
struct CopyTuning {
  int pieces;                  ///< that advance together: kPieces or 1.
  std::ptrdiff_t longest_row;  ///< of tasks that are copied together, row by row. Bytes.
  std::ptrdiff_t near_ahead;   ///< prefetch distance in a source that is read in order. Bytes.
};
const CopyTuning& copy_tuning();

/// Whole lines to copy; `dst` is aligned to a line.
struct Piece {
  const std::byte* src;
  std::byte* dst;
  std::size_t lines;
};

/// Collects pieces until there are `together` of them, and then until as many again, whose first
/// lines are prefetched while the former are copied.
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
  /// The source of the run that follows this one in the destination and has at least kLine bytes,
  /// or null. The line that both share is then written with this run, and the other has head_done
  /// set.
  const std::byte* next = nullptr;
  /// True if the preceding run writes the line that both share.
  bool head_done = false;
};

/// A run repeated in every row, to be interleaved with others row by row.
struct RowTask {
  const std::byte* src;
  std::byte* dst;
  std::size_t bytes;  ///< of one run.
  std::ptrdiff_t src_stride, dst_stride;
  /// The task whose run follows this one's in the destination (see Run::next), or -1; it may be
  /// this one.
  int next = -1;
  /// 1 if that run is in the next row, 0 if in the same.
  int next_row = 0;
  /// Like Run::head_done, for rows after the first (prev_row 1) or for all rows (prev_row 0).
  bool has_prev = false;
  int prev_row = 0;
  /// The prefetch distance in the source, for rows before `ahead_until`. Bytes.
  std::ptrdiff_t ahead = 0;
  std::ptrdiff_t ahead_until = 0;
};

struct CopyKernels {
  /// Writes the ends of the run and queues its whole lines; copies the batch whenever it is full.
  void (*add_run)(PieceBatch&, const Run&);
  /// Copies all queued pieces.
  void (*flush)(PieceBatch&);
  /// Copies `rows` rows of all tasks, row by row. `near` selects the kind of prefetch.
  void (*rows)(const RowTask* tasks, int num_tasks, std::ptrdiff_t rows, bool near);
};

/// The tables. @pre the processor has the instructions
const CopyKernels& avx2_copy_kernels();
const CopyKernels& avx512_copy_kernels();
const CopyKernels& neon_copy_kernels();

}  // namespace reshard::kernels
