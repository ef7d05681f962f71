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

/// What is stored of one slot of plain values on a rank.
struct ReferenceTensor {
  std::vector<std::byte> data;            ///< or the plain values, where they are stored so.
  std::vector<std::byte> scales, factor;  ///< empty where there are none.
};

/// The local tensors of a side, plain or quantised, made one at a time from plain values that come
/// from anywhere: to fill memory with, and to compare memory with. Nothing of a session is used.
/// From any thread.
class ReferenceTensors {
 public:
  /// `whole`: a layout in which every tensor is whole on a rank; blocks that the side's shards cut
  /// are made there. What was made last is kept, up to `cache_bytes`.
  ReferenceTensors(LayoutSide side, std::shared_ptr<ReferenceValues> values,
                   std::shared_ptr<const ModelLayout> whole, Index cache_bytes = Index{256} << 20);

  /// From now on pairs whose tensors `moved` says (by TensorId) get data and scales as they are,
  /// from local tensors of `from` that `stored` gives. Errors: those of Planner::make().
  Result<> take_as_stored(const std::shared_ptr<const ModelLayout>& from, StreamSource stored,
                          std::vector<bool> moved);

  const LayoutSide& side() const { return side_; }
  /// What is stored of a slot of side().values. Errors: of the values; a format that its shape does
  /// not allow.
  Result<std::shared_ptr<const ReferenceTensor>> make(Rank r, SlotId values_slot, int threads);
  /// Plain values, dequantised where they are stored quantised.
  Result<std::shared_ptr<const ReferenceTensor>> make_values(Rank r, SlotId values_slot,
                                                             int threads);
  /// Sources of side().values and of side().stored().
  StreamSource values_reader();
  StreamSource stored_reader();

  /// The pair of a slot of side().values; null where it is stored plain.
  const QuantisedLayout::Pair* pair_of(SlotId values_slot) const;
  /// The slot of side().stored() of one that is stored plain.
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
  Result<std::shared_ptr<const ReferenceTensor>> kept(const Key& key, Make&& make);
  Result<ReferenceTensor> made(Rank r, SlotId slot, int threads);
  Result<ReferenceTensor> quantised(Rank r, const Pair& pair, int threads);
  Result<ReferenceTensor> streamed(const Planner& planner, const StreamSource& stored, Rank r,
                                   const Pair& pair, int threads);
  Result<ReferenceTensor> dequantised(Rank r, const Pair& pair, int threads);
  Result<ReferenceTensors*> whole_side();
  ReferenceTensor room_for(Rank r, const Pair& pair) const;

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
