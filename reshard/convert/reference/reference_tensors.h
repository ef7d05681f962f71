// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "reshard/convert/reference/reference_values.h"
#include "reshard/io/make_layout.h"

namespace reshard {

/// The stored form of one slot of plain values on a rank.
struct ReferenceTensor {
  std::vector<std::byte> data;            ///< or the plain values, if stored plain.
  std::vector<std::byte> scales, factor;  ///< empty if there are none.
};

/// The local tensors of a side, plain or quantised, computed one at a time from given plain values,
/// without a session: to fill memory with, and to compare memory with. Thread-safe.
class ReferenceTensors {
 public:
  /// `whole`: a layout in which some rank holds each tensor whole; blocks that the side's shards
  /// cut are computed there. The most recent tensors are kept, up to `cache_bytes`.
  ReferenceTensors(LayoutSide side, std::shared_ptr<ReferenceValues> values,
                   std::shared_ptr<const ModelLayout> whole, Index cache_bytes = Index{256} << 20);

  /// Takes data and scales of pairs whose tensors are in `moved`, by TensorId, as they are from
  /// local tensors of `from`, which `stored` reads. Errors: those of Planner::make().
  Result<> take_as_stored(const std::shared_ptr<const ModelLayout>& from, StreamSource stored,
                          std::vector<bool> moved);

  const LayoutSide& side() const { return side_; }
  /// The stored form of a slot of side().values. Errors: those of the values; a format that its
  /// shape does not allow.
  Result<std::shared_ptr<const ReferenceTensor>> make(Rank r, SlotId values_slot, int threads);
  /// Its plain values, dequantised if stored quantised.
  Result<std::shared_ptr<const ReferenceTensor>> make_values(Rank r, SlotId values_slot,
                                                             int threads);
  /// Readers of side().values and of side().stored(); they refer to this object.
  StreamSource values_reader();
  StreamSource stored_reader();

  /// The pair of a slot of side().values; null if stored plain.
  const QuantisedLayout::Pair* pair_of(SlotId values_slot) const;
  /// The slot of side().stored() that stores a slot of side().values plain.
  SlotId plain_slot(SlotId values_slot) const;

 private:
  struct Entry;
  struct Key {
    Rank rank;
    SlotId slot;
    bool values;  ///< dequantised.
    auto operator<=>(const Key&) const = default;
  };
  using Pair = QuantisedLayout::Pair;
  template <class Make>
  Result<std::shared_ptr<const ReferenceTensor>> cached(const Key& key, Make&& make);
  Result<ReferenceTensor> compute(Rank r, SlotId slot, int threads);
  Result<ReferenceTensor> quantise_tensor(Rank r, const Pair& pair, int threads);
  Result<ReferenceTensor> stream_tensor(const Planner& planner, const StreamSource& stored, Rank r,
                                        const Pair& pair, int threads);
  Result<ReferenceTensor> dequantise_tensor(Rank r, const Pair& pair, int threads);
  Result<ReferenceTensors*> whole_side();
  ReferenceTensor allocate(Rank r, const Pair& pair) const;

  LayoutSide side_;
  std::shared_ptr<ReferenceValues> values_;
  std::shared_ptr<const ModelLayout> whole_layout_;
  Index cache_bytes_;
  std::vector<const Pair*> pair_of_;  ///< by slot of values; null: plain
  std::vector<std::pair<SlotId, int>>
      part_of_;  ///< by stored slot: of which, data 0, scales 1, ...
  StreamSource stored_from_;
  std::shared_ptr<const Planner> stored_plan_, whole_plan_;
  std::vector<bool> moved_as_stored_;

  std::mutex mutex_;
  std::unique_ptr<ReferenceTensors> whole_;
  std::map<Key, std::shared_ptr<Entry>> entries_;
  std::deque<Key> order_;  ///< of entries, oldest first
  Index cached_ = 0;
};

}  // namespace reshard
