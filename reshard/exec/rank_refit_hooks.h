// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "reshard/exec/rank_refit.h"

namespace reshard {

class TileConsumer;
class RangeWork;
class WorkerPool;

/// What a session (refit/) plugs into a RankRefit. Internal: users set RankRefitOptions only.
/// Everything is borrowed and must outlive the RankRefit.
struct RankRefitHooks {
  /// Staging memory for messages. Refits that never run at the same time may share it. A refit that
  /// needs more allocates its own; staging_bound() is always enough.
  std::span<std::byte> staging = {};
  /// Runs the copies instead of a pool of `RankRefitOptions::threads`; null: the refit makes one.
  /// Refits that never run at the same time may share it.
  WorkerPool* pool = nullptr;
  /// Receives all bytes for this rank, tile by tile, instead of the target's memory, whose
  /// addresses are then never written to (AddressRange). Requires `path = direct` and peers' memory
  /// that is mapped. Null: the target's memory receives them.
  TileConsumer* tiles = nullptr;
  /// Message path only (the direct path ignores both). `before` runs on ranges of the source's
  /// local tensors before their bytes are packed; items that no message needs do not run. `after`
  /// runs on ranges of the target's local tensors once all their bytes have arrived; items that
  /// receive nothing run too. Null: none.
  RangeWork* before = nullptr;
  RangeWork* after = nullptr;
};

/// The most staging memory that one refit uses for messages if its cap is `staging_bytes`. Bytes.
Index staging_bound(Index staging_bytes);

}  // namespace reshard
