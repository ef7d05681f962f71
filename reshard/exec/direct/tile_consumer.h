// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "reshard/index/interval.h"

namespace reshard {

/// Some bytes of a tile: where they belong in the target, and where they are in scratch memory
/// while the tile is consumed. Each range lies in one local tensor.
struct TileRange {
  const std::byte* begin = nullptr;  ///< an address in an AddressRange; there need not be memory.
  Index bytes = 0;
  Index at = 0;  ///< offset in the scratch memory, a multiple of 64.
  /// The first `row` of every `stride` bytes belong to the tile, the others are read along; 0: all
  /// belong to it.
  Index row = 0, stride = 0;
};

/// Consumes the bytes that a refit delivers to a rank, tile by tile, while each tile is in a cache.
/// The target's memory is not written. This is how a conversion becomes part of the copy. A
/// RankRefit borrows it (RankRefitHooks::tiles); ranges, sweeps and sizes must not change
/// meanwhile.
class TileConsumer {
 public:
  virtual ~TileConsumer() = default;

  /// Number of tiles. Together they contain every byte that the plan delivers to this rank.
  virtual std::size_t size() const = 0;
  virtual std::span<const TileRange> ranges(std::size_t tile) const = 0;
  /// Scratch memory that the largest tile needs. Bytes.
  virtual Index scratch_bytes() const = 0;
  /// How often every tile is delivered: 2 if the first sweep must see all tiles before any can be
  /// converted.
  virtual int sweeps() const = 0;

  /// Called once per tile and sweep, by any thread of the pool, several at a time. Bytes of the
  /// ranges that the plan does not deliver are zeros. The scratch memory belongs to the calling
  /// thread until this returns. Must not throw.
  virtual void consume(int sweep, std::size_t tile, std::byte* scratch) = 0;
  /// Called by one thread after all tiles of a sweep.
  virtual void end_sweep(int sweep) = 0;
};

}  // namespace reshard
