// SPDX-License-Identifier: Apache-2.0
// The body of the tile kernel. A GPU runs it in each thread of each block; a host compiler makes of
// it the same function for a block with one thread, which is how it is tested without a GPU.
#pragma once

#include "reshard/cuda/tiles/tiles.h"
#include "reshard/transform/convert_arithmetic.h"

namespace reshard::cuda {

/// The place of the calling thread.
struct TileThread {
  std::uint32_t block = 0, num_blocks = 1, thread = 0, num_threads = 1;
};

struct alignas(16) Vector16 {
  std::uint64_t low, high;
};

RESHARD_HOST_DEVICE constexpr std::uint32_t quotient(std::uint32_t n, const Divisor& by) {
  const std::uint64_t high = std::uint64_t{n} * by.multiplier >> 32;
  return static_cast<std::uint32_t>((high + n) >> by.shift);
}

struct CopyOffsets {
  std::int64_t src = 0, dst = 0;
};

/// Where iteration `i` of nested loops begins, outermost first.
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

/// Where vector `i` of a piece is, from the piece's addresses. `src_width`, `dst_width`: bytes of a
/// vector.
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

/// Bytes of a value. @pre is_convertible(dtype)
RESHARD_HOST_DEVICE inline int width_of(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

RESHARD_HOST_DEVICE inline float load_value(DType dtype, const std::byte* at) {
  if (dtype == DType::f32) return *reinterpret_cast<const float*>(at);
  const std::uint16_t half = *reinterpret_cast<const std::uint16_t*>(at);
  return dtype == DType::bf16 ? from_bf16(half) : from_f16(half);
}

RESHARD_HOST_DEVICE inline void store_value(DType dtype, float value, std::byte* at) {
  if (dtype == DType::f32) {
    *reinterpret_cast<float*>(at) = value;
  } else {
    *reinterpret_cast<std::uint16_t*>(at) = dtype == DType::bf16 ? to_bf16(value) : to_f16(value);
  }
}

/// Converts the thread's share of a slice, value by value.
RESHARD_HOST_DEVICE inline void convert_slice(const CopyPiece& piece, const CopyLoop* loops,
                                              const CopySlice& slice, const TileThread& me) {
  const StoredForm from = piece.conversion.from, to = piece.conversion.to;
  const int src_width = width_of(from.dtype), dst_width = width_of(to.dtype);
  for (std::uint32_t i = slice.first + me.thread; i < slice.first + slice.count;
       i += me.num_threads) {
    const CopyOffsets at = offsets_of(piece, loops, i, src_width, dst_width);
    const float value = load_value(from.dtype, piece.src + at.src);
    store_value(to.dtype, mapped_value(piece.conversion, value), piece.dst + at.dst);
  }
}

RESHARD_HOST_DEVICE inline void run_slice(const TileLaunch& launch, const CopySlice& slice,
                                          const TileThread& me) {
  const CopyPiece piece = launch.pieces[slice.piece];
  if (piece.converts) return convert_slice(piece, launch.loops, slice, me);
  switch (piece.log2_width) {
    case 0: return copy_slice<std::uint8_t>(piece, launch.loops, slice, me);
    case 1: return copy_slice<std::uint16_t>(piece, launch.loops, slice, me);
    case 2: return copy_slice<std::uint32_t>(piece, launch.loops, slice, me);
    case 3: return copy_slice<std::uint64_t>(piece, launch.loops, slice, me);
    default: return copy_slice<Vector16>(piece, launch.loops, slice, me);
  }
}

/// What thread `me` does in a launch. Tiles go to blocks in turn, so that blocks work at adjacent
/// memory at the same time.
RESHARD_HOST_DEVICE inline void run_tiles(const TileLaunch& launch, const TileThread& me) {
  for (std::uint32_t t = launch.first_tile + me.block; t < launch.end_tile; t += me.num_blocks) {
    const CopyTile tile = launch.tiles[t];
    for (std::uint32_t s = tile.first; s < tile.end; ++s) run_slice(launch, launch.slices[s], me);
  }
}

}  // namespace reshard::cuda
