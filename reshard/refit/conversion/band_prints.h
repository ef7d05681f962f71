// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/direct/held_copies.h"
#include "reshard/exec/direct/tile_consumer.h"

namespace reshard {

/// Fingerprints of what comes in bands: those of the copies that a rank would hold, were there
/// memory for all of it.
class BandPrints {
 public:
  BandPrints() = default;
  /// Which parts of which copies are in which band. `held` has copies in addresses that the taker's
  /// ranges have; it is not needed later. @pre ranges hold whole elements
  BandPrints(const HeldCopies& held, const TileConsumer& taker);

  /// Fingerprints the band's parts. Threads may do different bands at once. Allocates nothing.
  /// Errors: fingerprint()'s.
  Result<> read(std::size_t band, const std::byte* scratch);
  /// The sums, in the order of HeldCopies::copies(), of what was read last of every band. Belongs
  /// to this object.
  std::span<const Fingerprint> sums();

 private:
  struct Part {
    std::size_t copy = 0;
    FingerprintKey key;
    Box box;
    Strided where;  ///< elements, from the scratch memory's first.
    Fingerprint print;
  };

  std::vector<std::vector<Part>> by_band_;
  std::vector<Fingerprint> sums_;
};

/// A part of a box and where its elements are.
struct BandBox {
  Box box;
  Strided where;
};

/// Appends the parts of a box whose elements lie in [begin, end) of a local tensor (elements).
/// @pre elements are where a box of a row-major tensor's are: the larger a dimension's stride, the
/// further out it is, and no two elements share a place
void clip_box(const BandBox& whole, Index begin, Index end, std::vector<BandBox>& out);

}  // namespace reshard
