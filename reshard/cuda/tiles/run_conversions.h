// SPDX-License-Identifier: Apache-2.0
// The body of the kernel that converts values on their way. As run_tiles.h.
#pragma once

#include "reshard/cuda/tiles/run_tiles.h"

namespace reshard::cuda {

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

/// Each value as the conversion maps it.
RESHARD_CALLED inline Eight mapped_eight(const Conversion& conversion, Eight values) {
  for (float& value : values.of) value = mapped_value(conversion, value);
  return values;
}

/// Converts the thread's share of a slice of vectors of eight values.
template <DType From, DType To>
RESHARD_INLINE void convert_vectors(const CopyPiece& of, const CopyLoop* loops,
                                    const CopySlice& slice, const TileThread& me) {
  constexpr std::uint32_t kAtOnce = From == DType::f32 ? 2 : 4;
  const CopyPiece piece = of;
  const bool is_mapped = piece.conversion.from.map != piece.conversion.to.map;
  const std::uint32_t end = slice.first + slice.count;
  for (std::uint32_t begin = slice.first + me.thread; begin < end;
       begin += kAtOnce * me.num_threads) {
    Stored<From> held[kAtOnce];
    std::byte* to[kAtOnce] = {};
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      const std::uint32_t i = begin + k * me.num_threads;
      if (i >= end) continue;
      const CopyOffsets at = offsets_of(piece, loops, i, 8 * width_of(From), 8 * width_of(To));
      held[k] = Stored<From>::load(piece.src + at.src);
      to[k] = piece.dst + at.dst;
    }
    RESHARD_UNROLL
    for (std::uint32_t k = 0; k < kAtOnce; ++k) {
      if (to[k] == nullptr) continue;
      const Eight values = held[k].values();
      store_eight<To>(is_mapped ? mapped_eight(of.conversion, values) : values, to[k]);
    }
  }
}

/// Does the work of thread `me` in a launch of conversions of values, or of vectors.
RESHARD_HOST_DEVICE inline void convert_tiles(const TileLaunch& launch, const TileThread& me) {
  for_each_slice_of(launch, me, [&](const CopySlice& slice, const TileThread& mine) {
    convert_slice(launch.pieces[slice.piece], launch.loops, slice, mine);
  });
}
template <DType From, DType To>
RESHARD_HOST_DEVICE void convert_vector_tiles(const TileLaunch& launch, const TileThread& me) {
  for_each_slice_of(launch, me, [&](const CopySlice& slice, const TileThread& mine) {
    convert_vectors<From, To>(launch.pieces[slice.piece], launch.loops, slice, mine);
  });
}

}  // namespace reshard::cuda
