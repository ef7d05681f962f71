// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/plan/moves.h"

namespace reshard {

/// What all ranks cut alike.
struct ChunkSizes {
  Index staged = 0;    ///< most bytes of a chunk that either side stages; a multiple of 64.
  Index in_place = 0;  ///< least run that gets chunks of its own.
};

/// Most bytes of a chunk that lies in one run on both sides.
inline constexpr Index kMostInPlace = Index{8} << 20;

/// Bytes [begin, end) of one piece, from byte `at` of the chunk on.
struct ChunkPart {
  std::size_t piece = 0;
  Index begin = 0, end = 0, at = 0;
};

/// The messages between two ranks.
struct PairChunks {
  struct Chunk {
    std::size_t first = 0, count = 0;  ///< in `parts`.
    Index bytes = 0;
    Index before = 0;  ///< bytes of the chunks before it.
  };
  std::vector<Chunk> chunks;
  std::vector<ChunkPart> parts;
  Index bytes = 0;
  std::span<const ChunkPart> parts_of(const Chunk& chunk) const {
    return std::span(parts).subspan(chunk.first, chunk.count);
  }
};

/// Cuts the bytes between two ranks into messages; sender and receiver find the same. A piece that
/// is one run of at least `in_place` bytes on either side has chunks of its own, so that this side
/// needs no staging; all other pieces are packed one after the other into chunks of `staged` bytes.
/// No chunk ends inside an element that is converted.
PairChunks chunks_of(std::span<const PairPiece> pieces, const ChunkSizes& sizes);

}  // namespace reshard
