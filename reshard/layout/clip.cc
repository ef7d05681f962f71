// SPDX-License-Identifier: Apache-2.0
#include "reshard/layout/clip.h"

#include <algorithm>

namespace reshard {
namespace {

/// Iteration i of the outermost loop.
StridedCopy iteration(const StridedCopy& copy, Index i) {
  StridedCopy inner = copy;
  inner.src_offset += i * copy.loops[0].src_stride;
  inner.dst_offset += i * copy.loops[0].dst_stride;
  inner.num_loops = copy.num_loops - 1;
  std::copy(copy.loops.begin() + 1, copy.loops.begin() + copy.num_loops, inner.loops.begin());
  inner.loops[static_cast<std::size_t>(inner.num_loops)] = {};
  return inner;
}

StridedCopy iterations(const StridedCopy& copy, Index first, Index count) {
  StridedCopy part = copy;
  part.src_offset += first * copy.loops[0].src_stride;
  part.dst_offset += first * copy.loops[0].dst_stride;
  part.loops[0].count = count;
  return count == 1 ? iteration(part, 0) : part;
}

}  // namespace

Interval destination_span(const StridedCopy& copy) {
  Index end = copy.dst_offset + copy.run_bytes;
  for (int i = 0; i < copy.num_loops; ++i)
    end += (copy.loops[static_cast<std::size_t>(i)].count - 1) *
           copy.loops[static_cast<std::size_t>(i)].dst_stride;
  return copy.bytes() == 0 ? Interval{} : Interval{copy.dst_offset, end};
}

Interval source_span(const StridedCopy& copy) {
  Index end = copy.src_offset + copy.source_bytes(copy.run_bytes);
  for (int i = 0; i < copy.num_loops; ++i)
    end += (copy.loops[static_cast<std::size_t>(i)].count - 1) *
           copy.loops[static_cast<std::size_t>(i)].src_stride;
  return copy.bytes() == 0 ? Interval{} : Interval{copy.src_offset, end};
}

void clip_destination(const StridedCopy& copy, Index begin, Index end,
                      std::vector<StridedCopy>& out) {
  const Interval span = destination_span(copy);
  if (intersect(span, Interval{begin, std::max(begin, end)}).empty()) return;
  if (begin <= span.begin() && span.end() <= end) {
    out.push_back(copy);
    return;
  }
  if (copy.num_loops == 0) {
    const Interval kept = intersect(span, Interval{begin, end});
    StridedCopy part = copy;
    part.src_offset += copy.source_bytes(kept.begin() - copy.dst_offset);
    part.dst_offset = kept.begin();
    part.run_bytes = kept.size();
    out.push_back(part);
    return;
  }
  const auto& outer = copy.loops[0];
  const Index covers = destination_span(iteration(copy, 0)).size();
  // Iterations that are completely inside stay one loop; the one before and the one after are
  // clipped separately.
  const Index low = begin - copy.dst_offset, high = end - copy.dst_offset - covers;
  const Index first = std::clamp<Index>(
      low <= 0 ? 0 : (low + outer.dst_stride - 1) / outer.dst_stride, 0, outer.count);
  const Index last =
      std::clamp<Index>(high < 0 ? 0 : high / outer.dst_stride + 1, first, outer.count);
  if (first > 0) clip_destination(iteration(copy, first - 1), begin, end, out);
  if (last > first) out.push_back(iterations(copy, first, last - first));
  if (last < outer.count) clip_destination(iteration(copy, last), begin, end, out);
}

StridedCopy part_of_copy(const StridedCopy& copy, Index i, Index n) {
  StridedCopy part = copy;
  if (copy.num_loops > 0) {
    auto& outer = part.loops[0];
    const Index begin = outer.count * i / n, end = outer.count * (i + 1) / n;
    part.src_offset += begin * outer.src_stride;
    part.dst_offset += begin * outer.dst_stride;
    outer.count = end - begin;
    return part;
  }
  // Whole pages, so that no two parts write the same cache line of an aligned destination.
  constexpr Index kPage = 4096;
  const Index pages = (copy.run_bytes + kPage - 1) / kPage;
  const Index begin = std::min(copy.run_bytes, pages * i / n * kPage),
              end = std::min(copy.run_bytes, pages * (i + 1) / n * kPage);
  part.src_offset += copy.source_bytes(begin);
  part.dst_offset += begin;
  part.run_bytes = end - begin;
  return part;
}

}  // namespace reshard
