// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/verify/cell_replicas.h"
#include "reshard/transform/fingerprint_key.h"

namespace reshard::conversion {

/// Some bytes of a tile: where they belong, and where they are while a thread has the tile. Each
/// range lies in one local tensor.
struct TileRange {
  const std::byte* begin = nullptr;  ///< an address in an AddressRange; there need not be memory.
  Index bytes = 0;
  Index at = 0;  ///< offset in the tile's memory, a multiple of 64.
  /// The first `row` of every `stride` bytes belong to the tile, the others are read along; equal:
  /// all belong to it.
  Index row = 0, stride = 0;
};
/// The ranges of each tile.
using TileRanges = std::vector<std::vector<TileRange>>;

/// Fingerprints of bytes that arrive in tiles: those of the replicas that the rank would hold if
/// all tiles were in memory at once.
class TileFingerprints {
 public:
  TileFingerprints() = default;
  /// Finds the parts of replicas in each tile. The replicas' addresses are those of the ranges.
  /// `replicas` is not needed afterwards. @pre ranges contain whole elements
  TileFingerprints(const CellReplicas& replicas, const TileRanges& tiles);

  /// Fingerprints the parts in one tile. Several threads may read different tiles at once.
  /// Allocates nothing. Errors: fingerprint()'s.
  Result<> read(std::size_t tile, const std::byte* scratch);
  /// The sums over the most recent read() of every tile, in the order of CellReplicas::all(). Owned
  /// by this object.
  std::span<const Fingerprint> sums();

 private:
  struct Part {
    std::size_t replica = 0;
    FingerprintKey key;
    Box box;
    Strided where;  ///< in elements from the start of the scratch memory.
    Fingerprint fingerprint;
  };

  std::vector<std::vector<Part>> by_tile_;
  std::vector<Fingerprint> sums_;
};

/// Part of a box, and where its elements are.
struct TileBox {
  Box box;
  Strided where;
};

/// Appends the parts of a box whose elements are in [begin, end) of a local tensor (in elements).
/// @pre the elements are placed as those of a box of a row-major tensor: an outer dimension has a
/// larger stride than an inner one, and no two elements share a place
void clip_box(const TileBox& whole, Index begin, Index end, std::vector<TileBox>& out);

}  // namespace reshard::conversion
