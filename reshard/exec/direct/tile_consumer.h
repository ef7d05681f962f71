// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "reshard/index/interval.h"

namespace reshard {

/// Some bytes of a band: where they belong in the target, and where they are in scratch memory
/// while the band is taken. Each range lies in one local tensor.
struct BandRange {
  const std::byte* begin = nullptr;  ///< only a name: there need not be memory (AddressRange).
  Index bytes = 0;
  Index at = 0;  ///< in the scratch memory, a multiple of 64.
  /// Of every `stride` bytes the first `row` are the band's, the others come along; 0: all are.
  Index row = 0, stride = 0;
};

/// Takes what a refit delivers band by band, while it is in a cache, instead of target memory that
/// holds all of it: how a conversion is made one with the copy. Borrowed by a RankRefit
/// (RankRefitHooks::tiles). Ranges, sweeps and sizes stay as they are while it is lent.
class TileConsumer {
 public:
  virtual ~TileConsumer() = default;

  /// Bands; together they have every byte that the plan delivers here.
  virtual std::size_t size() const = 0;
  virtual std::span<const BandRange> ranges(std::size_t band) const = 0;
  /// Most bytes that a band's ranges reach to.
  virtual Index scratch_bytes() const = 0;
  /// How often every band is brought: 2 where something must be known of all of them before any can
  /// be used.
  virtual int sweeps() const = 0;

  /// One band, once a sweep; by any of the pool's threads, several at a time. Bytes of its ranges
  /// that the plan does not deliver are zeros. The scratch memory is the thread's until this
  /// returns. Must not throw.
  virtual void take(int sweep, std::size_t band, std::byte* scratch) = 0;
  /// After all bands of a sweep; by one thread.
  virtual void end_sweep(int sweep) = 0;
};

}  // namespace reshard
