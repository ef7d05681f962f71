// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/message/range_work.h"

#include <algorithm>
#include <functional>

#include "reshard/layout/clip.h"

namespace reshard::message {

ItemFinder::ItemFinder(const RangeWork& work)
    : ranges_(work.ranges().begin(), work.ranges().end()) {
  std::ranges::sort(ranges_, std::less<>(), &ItemRange::begin);
  for (const ItemRange& range : ranges_) longest_ = std::max(longest_, range.bytes);
}

/// Calls f(range) for the ranges that contain any of the bytes [first, last).
template <class F>
void ItemFinder::for_each_range(const std::byte* first, const std::byte* last, F&& f) const {
  auto range =
      std::ranges::lower_bound(ranges_, first - longest_, std::less<>(), &ItemRange::begin);
  for (; range != ranges_.end() && range->begin < last; ++range)
    if (range->begin + range->bytes > first) f(*range);
}

void ItemFinder::find_read(const std::byte* first, Index bytes, std::vector<ItemBytes>& out) const {
  for_each_range(first, first + bytes, [&](const ItemRange& r) { out.push_back({r.item, 0}); });
}

void ItemFinder::find_read(const CopyTask& task, std::vector<ItemBytes>& out) const {
  const Interval span = source_span(task.copy);
  find_read(task.src + span.begin(), span.size(), out);
}

void ItemFinder::find_written(const std::byte* first, Index bytes,
                              std::vector<ItemBytes>& out) const {
  for_each_range(first, first + bytes, [&](const ItemRange& r) {
    const std::byte* const begin = std::max(first, r.begin);
    const std::byte* const end = std::min(first + bytes, r.begin + r.bytes);
    out.push_back({r.item, end - begin});
  });
}

void ItemFinder::find_written(const CopyTask& task, std::vector<ItemBytes>& out) const {
  // The order of loops does not change which bytes are written. clip_destination() needs the
  // largest destination strides outermost, but unpacking orders loops by the packed side.
  StridedCopy copy = task.copy;
  std::sort(copy.loops.begin(), copy.loops.begin() + copy.num_loops,
            [](const auto& a, const auto& b) { return a.dst_stride > b.dst_stride; });
  const Interval span = destination_span(copy);
  const std::byte* const base = task.dst;
  std::vector<StridedCopy> parts;
  for_each_range(base + span.begin(), base + span.end(), [&](const ItemRange& r) {
    parts.clear();
    clip_destination(copy, r.begin - base, r.begin + r.bytes - base, parts);
    Index bytes = 0;
    for (const StridedCopy& part : parts) bytes += part.bytes();
    if (bytes > 0) out.push_back({r.item, bytes});
  });
}

}  // namespace reshard::message
