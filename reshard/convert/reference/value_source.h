// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "reshard/convert/checkpoint_source.h"
#include "reshard/exec/stream.h"
#include "reshard/io/make_layout.h"

namespace reshard::reference {

/// The plain values of a checkpoint's local tensors. Plain ones are the mapped files; quantised
/// ones are dequantised as a whole on their first read, and the most recent are kept, up to
/// `cache_bytes`.
class ValueSource {
 public:
  /// Both are borrowed. @pre `files` binds side.stored()
  ValueSource(const LayoutSide& side, const CheckpointSource& files, Index cache_bytes);

  /// The bytes of a slot of side.values on a rank. Thread-safe. Errors: a format that no kernel
  /// supports for that shape.
  Result<std::shared_ptr<const std::byte>> open(Rank r, SlotId slot);
  /// For stream_rank(); refers to this object.
  StreamSource reader() {
    return [this](Rank r, SlotId slot) { return open(r, slot); };
  }

 private:
  using Bytes = std::vector<std::byte>;
  struct Entry {
    std::once_flag once;
    Result<> outcome;
    std::shared_ptr<const Bytes> bytes;
  };
  using Key = std::pair<Rank, SlotId>;

  Result<std::shared_ptr<const Bytes>> dequantise(Rank r, const QuantisedLayout::Pair& pair) const;

  const LayoutSide& side_;
  const CheckpointSource& files_;
  Index cache_bytes_;
  std::vector<const QuantisedLayout::Pair*> pair_of_;  ///< by slot of values; null: plain
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Entry>> entries_;
  std::deque<Key> order_;  ///< of entries, oldest first
  Index cached_ = 0;
};

}  // namespace reshard::reference
