// SPDX-License-Identifier: Apache-2.0
// The body of the transposing kernel, as phases: all threads of a block end one before any begins
// the next. A block reads rows of a tile, and writes its columns, in accesses of adjacent threads
// to adjacent memory; in between the tile is in shared memory.
#pragma once

#include "reshard/cuda/tiles/run_tiles.h"
#include "reshard/cuda/tiles/transposes.h"

namespace reshard::cuda {

/// The elements of a tile: those of a matrix that has them, from (first_row, first_col) on.
struct TransposePart {
  const std::byte* src;
  std::byte* dst;
  std::uint32_t rows, cols;
};

RESHARD_HOST_DEVICE inline TransposePart part_of(const TransposePiece& piece, const CopyLoop* loops,
                                                 const TransposeTile& tile) {
  const CopyOffsets matrix =
      offsets_of_loops(loops + piece.first_loop, piece.num_loops, tile.matrix);
  const std::int64_t width = std::int64_t{1} << piece.log2_width;
  const std::uint32_t edge = transpose_edge(piece.log2_width);
  const std::uint32_t rows = piece.rows - tile.first_row, cols = piece.cols - tile.first_col;
  return {piece.src + matrix.src + tile.first_row * piece.src_row + tile.first_col * width,
          piece.dst + matrix.dst + tile.first_row * width + tile.first_col * piece.dst_col,
          rows < edge ? rows : edge, cols < edge ? cols : edge};
}

/// `K` adjacent elements, of which the first `count` are used.
template <class Element, std::uint32_t K>
struct TransposeRun {
  Element of[K];
  std::uint32_t count;
};

/// One access if all elements are used, which is then aligned.
template <class Element, std::uint32_t K>
RESHARD_HOST_DEVICE void load_run(TransposeRun<Element, K>& run, const std::byte* at) {
  const auto* const from = reinterpret_cast<const Element*>(at);
  if constexpr (K > 1) {
    static_assert(sizeof run.of == sizeof(std::uint64_t));
    if (run.count == K) {
      const std::uint64_t bits = *reinterpret_cast<const std::uint64_t*>(at);
      __builtin_memcpy(run.of, &bits, sizeof bits);
      return;
    }
  }
  for (std::uint32_t k = 0; k < K; ++k)
    if (k < run.count) run.of[k] = from[k];
}

template <class Element, std::uint32_t K>
RESHARD_HOST_DEVICE void store_run(const TransposeRun<Element, K>& run, std::byte* at) {
  auto* const to = reinterpret_cast<Element*>(at);
  if constexpr (K > 1) {
    if (run.count == K) {
      std::uint64_t bits;
      __builtin_memcpy(&bits, run.of, sizeof bits);
      *reinterpret_cast<std::uint64_t*>(at) = bits;
      return;
    }
  }
  for (std::uint32_t k = 0; k < K; ++k)
    if (k < run.count) to[k] = run.of[k];
}

/// The elements of a tile in shared memory.
template <class Element>
struct SharedTile {
  static constexpr int kLog2 = sizeof(Element) == 1   ? 0
                               : sizeof(Element) == 2 ? 1
                               : sizeof(Element) == 4 ? 2
                               : sizeof(Element) == 8 ? 3
                                                      : 4;
  static constexpr std::uint32_t kEdge = transpose_edge(kLog2);

  RESHARD_HOST_DEVICE static Element& at(TransposeShared& shared, std::uint32_t row,
                                         std::uint32_t col) {
    return *reinterpret_cast<Element*>(shared.tile + row * transpose_pitch(kLog2) +
                                       col * sizeof(Element));
  }
};

/// Calls load(outer, inner, a run) for the thread's share of a tile of `outer` lines with `inner`
/// elements each, four times before the first save(outer, inner, the run).
template <class Element, std::uint32_t K, class Load, class Save>
RESHARD_HOST_DEVICE void for_each_run(std::uint32_t outer, std::uint32_t inner,
                                      const TileThread& me, Load&& load, Save&& save) {
  constexpr std::uint32_t kAtOnce = 4, kPerLine = SharedTile<Element>::kEdge / K;
  const std::uint32_t end = outer * kPerLine;
  for (std::uint32_t begin = me.thread; begin < end; begin += kAtOnce * me.num_threads) {
    TransposeRun<Element, K> runs[kAtOnce] = {};
    for (std::uint32_t j = 0; j < kAtOnce; ++j) {
      const std::uint32_t i = begin + j * me.num_threads, at = i % kPerLine * K;
      if (i >= end || at >= inner) continue;
      runs[j].count = inner - at < K ? inner - at : K;
      load(i / kPerLine, at, runs[j]);
    }
    for (std::uint32_t j = 0; j < kAtOnce; ++j) {
      const std::uint32_t i = begin + j * me.num_threads;
      if (runs[j].count > 0) save(i / kPerLine, i % kPerLine * K, runs[j]);
    }
  }
}

template <class Element, std::uint32_t K>
RESHARD_HOST_DEVICE void load_tile(const TransposePart& part, std::int64_t src_row,
                                   TransposeShared& shared, const TileThread& me) {
  using Run = TransposeRun<Element, K>;
  for_each_run<Element, K>(
      part.rows, part.cols, me,
      [&](std::uint32_t row, std::uint32_t col, Run& run) {
        load_run(run, part.src + row * src_row + std::int64_t{col} * std::int64_t{sizeof(Element)});
      },
      [&](std::uint32_t row, std::uint32_t col, const Run& run) {
        for (std::uint32_t k = 0; k < K; ++k)
          if (k < run.count) SharedTile<Element>::at(shared, row, col + k) = run.of[k];
      });
}

template <class Element, std::uint32_t K>
RESHARD_HOST_DEVICE void store_tile(const TransposePart& part, std::int64_t dst_col,
                                    TransposeShared& shared, const TileThread& me) {
  using Run = TransposeRun<Element, K>;
  for_each_run<Element, K>(
      part.cols, part.rows, me,
      [&](std::uint32_t col, std::uint32_t row, Run& run) {
        for (std::uint32_t k = 0; k < K; ++k)
          if (k < run.count) run.of[k] = SharedTile<Element>::at(shared, row + k, col);
      },
      [&](std::uint32_t col, std::uint32_t row, const Run& run) {
        store_run(run,
                  part.dst + col * dst_col + std::int64_t{row} * std::int64_t{sizeof(Element)});
      });
}

/// Calls f<the type of an element, elements at once>() for the width of a piece's elements.
template <class F>
RESHARD_HOST_DEVICE void with_element(int log2_width, bool wide, F&& f) {
  switch (log2_width) {
    case 0:
      return wide ? f.template operator()<std::uint8_t, 8>()
                  : f.template operator()<std::uint8_t, 1>();
    case 1:
      return wide ? f.template operator()<std::uint16_t, 4>()
                  : f.template operator()<std::uint16_t, 1>();
    case 2:
      return wide ? f.template operator()<std::uint32_t, 2>()
                  : f.template operator()<std::uint32_t, 1>();
    case 3: return f.template operator()<std::uint64_t, 1>();
    default: return f.template operator()<Vector16, 1>();
  }
}

RESHARD_HOST_DEVICE inline void load_phase(const TransposePiece& piece, const TransposePart& part,
                                           TransposeShared& shared, const TileThread& me) {
  with_element(piece.log2_width, piece.wide_src, [&]<class Element, std::uint32_t K>() {
    load_tile<Element, K>(part, piece.src_row, shared, me);
  });
}

RESHARD_HOST_DEVICE inline void store_phase(const TransposePiece& piece, const TransposePart& part,
                                            TransposeShared& shared, const TileThread& me) {
  with_element(piece.log2_width, piece.wide_dst, [&]<class Element, std::uint32_t K>() {
    store_tile<Element, K>(part, piece.dst_col, shared, me);
  });
}

/// Calls f(piece, part) for each tile of a thread block.
template <class F>
RESHARD_HOST_DEVICE void for_each_transpose(const TransposeLaunch& launch, const TileThread& me,
                                            F&& f) {
  for (std::uint32_t t = launch.first_tile + me.block; t < launch.end_tile; t += me.num_blocks) {
    const TransposeTile tile = launch.tiles[t];
    const TransposePiece piece = launch.pieces[tile.piece];
    f(piece, part_of(piece, launch.loops, tile));
  }
}

}  // namespace reshard::cuda
