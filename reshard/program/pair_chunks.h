// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "reshard/plan/moves.h"

namespace reshard::program {

/// How bytes are cut into chunks; equal on all ranks.
struct ChunkSizes {
  Index staged = 0;    ///< the most bytes of a chunk that a side stages; a multiple of 64.
  Index in_place = 0;  ///< the shortest run, in bytes, that gets its own chunks.
};

/// The most bytes of a chunk that is one run on both sides.
inline constexpr Index kMaxInPlace = Index{8} << 20;

/// Bytes [begin, end) of one piece, at byte `at` of the chunk.
struct ChunkPart {
  std::size_t piece = 0;
  Index begin = 0, end = 0, at = 0;
};

/// The messages between two ranks.
struct PairChunks {
  struct Chunk {
    std::size_t first = 0, count = 0;  ///< range of `parts`.
    Index bytes = 0;
    Index before = 0;  ///< bytes of all earlier chunks of the pair.
  };
  std::vector<Chunk> chunks;
  std::vector<ChunkPart> parts;
  Index bytes = 0;
  std::span<const ChunkPart> parts_of(const Chunk& chunk) const {
    return std::span(parts).subspan(chunk.first, chunk.count);
  }
};

/// Cuts the bytes between two ranks into messages; sender and receiver compute the same ones. A
/// piece that is one run of at least `in_place` bytes on either side gets its own chunks, so that
/// this side needs no staging. All other pieces are packed one after another into chunks of
/// `staged` bytes. No chunk ends inside an element that is converted.
PairChunks chunks_of(std::span<const PairPiece> pieces, const ChunkSizes& sizes);

/// A piece as all ranks of a chain of relays know it, wherever each has it.
struct ChainPiece {
  Index bytes = 0;
  bool converts = false;
};

/// Cuts the bytes of a chain into messages, the same from hop to hop. A piece of at least
/// `in_place` bytes gets its own chunks; no chunk has more than `staged` bytes.
PairChunks chunks_of_chain(std::span<const ChainPiece> pieces, const ChunkSizes& sizes);

}  // namespace reshard::program
