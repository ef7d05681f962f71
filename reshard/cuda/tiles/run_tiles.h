// SPDX-License-Identifier: Apache-2.0
// The body of the tile kernel. A GPU runs it in each thread of each block; a host compiler makes of
// it the same function for a block with one thread, which is how it is tested without a GPU.
#pragma once

#include "reshard/cuda/tiles/tiles.h"
#include "reshard/cuda/tiles/vectors.h"

namespace reshard::cuda {

/// The place of the calling thread.
struct TileThread {
  std::uint32_t block = 0, num_blocks = 1, thread = 0, num_threads = 1;
};

RESHARD_HOST_DEVICE constexpr std::uint32_t quotient(std::uint32_t n, const Divisor& by) {
  const std::uint64_t high = std::uint64_t{n} * by.multiplier >> 32;
  return static_cast<std::uint32_t>((high + n) >> by.shift);
}

struct CopyOffsets {
  std::int64_t src = 0, dst = 0;
};

/// The offsets of the start of iteration `i` of nested loops, which are outermost first.
RESHARD_HOST_DEVICE inline CopyOffsets offsets_of_loops(const CopyLoop* loops, int num_loops,
                                                        std::uint32_t i) {
  CopyOffsets at;
  for (int l = num_loops - 1; l >= 0; --l) {
    const CopyLoop& loop = loops[l];
    const std::uint32_t next = quotient(i, loop.count);
    const std::int64_t step = i - next * loop.count.divisor;
    at.src += step * loop.src_stride;
    at.dst += step * loop.dst_stride;
    i = next;
  }
  return at;
}

/// The offsets of vector `i` of a piece from the piece's addresses. `src_width`, `dst_width`: bytes
/// of a vector.
RESHARD_HOST_DEVICE inline CopyOffsets offsets_of(const CopyPiece& piece, const CopyLoop* loops,
                                                  std::uint32_t i, int src_width, int dst_width) {
  const std::uint32_t outer = quotient(i, piece.run);
  const std::uint32_t inner = i - outer * piece.run.divisor;
  CopyOffsets at = offsets_of_loops(loops + piece.first_loop, piece.num_loops, outer);
  at.src += std::int64_t{inner} * src_width;
  at.dst += std::int64_t{inner} * dst_width;
  return at;
}

/// Copies the thread's share of a slice; several loads are in flight before the first store.
template <class Vector>
RESHARD_HOST_DEVICE void copy_slice(const CopyPiece& piece, const CopyLoop* loops,
                                    const CopySlice& slice, const TileThread& me) {
  constexpr int kAtOnce = 4;
  constexpr int kWidth = static_cast<int>(sizeof(Vector));
  const std::uint32_t end = slice.first + slice.count;
  for (std::uint32_t begin = slice.first + me.thread; begin < end;
       begin += kAtOnce * me.num_threads) {
    Vector held[kAtOnce] = {};
    std::byte* to[kAtOnce] = {};
    for (int k = 0; k < kAtOnce; ++k) {
      const std::uint32_t i = begin + static_cast<std::uint32_t>(k) * me.num_threads;
      if (i >= end) continue;
      const CopyOffsets at = offsets_of(piece, loops, i, kWidth, kWidth);
      held[k] = *reinterpret_cast<const Vector*>(piece.src + at.src);
      to[k] = piece.dst + at.dst;
    }
    for (int k = 0; k < kAtOnce; ++k)
      if (to[k] != nullptr) *reinterpret_cast<Vector*>(to[k]) = held[k];
  }
}

RESHARD_HOST_DEVICE inline void run_slice(const TileLaunch& launch, const CopySlice& slice,
                                          const TileThread& me) {
  const CopyPiece piece = launch.pieces[slice.piece];
  switch (piece.log2_width) {
    case 0: return copy_slice<std::uint8_t>(piece, launch.loops, slice, me);
    case 1: return copy_slice<std::uint16_t>(piece, launch.loops, slice, me);
    case 2: return copy_slice<std::uint32_t>(piece, launch.loops, slice, me);
    case 3: return copy_slice<std::uint64_t>(piece, launch.loops, slice, me);
    default: return copy_slice<Vector16>(piece, launch.loops, slice, me);
  }
}

/// The threads that share a slice, among as many groups as a tile has slices: 16 at least, since a
/// slice keeps a group waiting for its tables and then for memory.
RESHARD_HOST_DEVICE inline std::uint32_t threads_of_slice(std::uint32_t slices,
                                                          std::uint32_t threads) {
  while (slices > 1 && threads % 2 == 0 && threads > 16) {
    slices = (slices + 1) / 2;
    threads /= 2;
  }
  return threads;
}

/// Calls f(slice, thread of those that share it) for the slices of a launch that thread `me` has a
/// share of. Tiles go to blocks in turn, so that blocks work at adjacent memory at the same time.
template <class F>
RESHARD_INLINE void for_each_slice_of(const TileLaunch& launch, const TileThread& me, F&& f) {
  for (std::uint32_t t = launch.first_tile + me.block; t < launch.end_tile; t += me.num_blocks) {
    const CopyTile tile = launch.tiles[t];
    const std::uint32_t lanes = threads_of_slice(tile.end - tile.first, me.num_threads);
    const TileThread mine{me.block, me.num_blocks, me.thread % lanes, lanes};
    for (std::uint32_t s = tile.first + me.thread / lanes; s < tile.end;
         s += me.num_threads / lanes)
      f(launch.slices[s], mine);
  }
}

/// Does the work of thread `me` in a launch of copies.
RESHARD_HOST_DEVICE inline void run_tiles(const TileLaunch& launch, const TileThread& me) {
  for_each_slice_of(launch, me, [&](const CopySlice& slice, const TileThread& mine) {
    run_slice(launch, slice, mine);
  });
}

}  // namespace reshard::cuda
