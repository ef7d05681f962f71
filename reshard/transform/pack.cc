// SPDX-License-Identifier: Apache-2.0
// Cuts a range of the packed form into copies of whole boxes: the rest of a run, the rest of each
// loop from the inside out, whole outer iterations, and the same in reverse at the end. At most
// four per loop, however long the range is.
#include "reshard/transform/pack.h"

#include <algorithm>

namespace reshard {
namespace {

using Loop = StridedCopy::Loop;

const Loop& loop_at(const StridedCopy& copy, int k) {
  return copy.loops[static_cast<std::size_t>(k)];
}

/// The copy of `bytes` of the run with this index, from `skip` bytes into it.
StridedCopy part_of_run(const StridedCopy& copy, Index run, Index skip, Index bytes) {
  StridedCopy part{.src_offset = copy.src_offset + skip,
                   .dst_offset = copy.dst_offset + skip,
                   .run_bytes = bytes};
  for (int k = copy.num_loops - 1; k >= 0; --k) {
    const Loop& loop = loop_at(copy, k);
    part.src_offset += run % loop.count * loop.src_stride;
    part.dst_offset += run % loop.count * loop.dst_stride;
    run /= loop.count;
  }
  return part;
}

/// The largest box of whole runs that begins at index `run` and is contiguous in the packed form,
/// of at most `limit` runs.
StridedCopy whole_runs(const StridedCopy& copy, Index run, Index limit) {
  StridedCopy box = part_of_run(copy, run, 0, copy.run_bytes);
  Index inside = 1;
  int k = copy.num_loops - 1;
  while (k > 0 && run % (inside * loop_at(copy, k).count) == 0 &&
         limit >= inside * loop_at(copy, k).count)
    inside *= loop_at(copy, k--).count;
  if (k < 0) return box;
  const Loop& outer = loop_at(copy, k);
  const Index count = std::min(limit / inside, outer.count - run / inside % outer.count);
  if (count > 1)
    box.loops[static_cast<std::size_t>(box.num_loops++)] = {count, outer.src_stride,
                                                            outer.dst_stride};
  for (++k; k < copy.num_loops; ++k)
    box.loops[static_cast<std::size_t>(box.num_loops++)] = loop_at(copy, k);
  return box;
}

/// Calls f(box, byte in the range) for copies that make up `bytes` bytes of the packed form from
/// `begin` on.
template <class F>
void for_each_box(const StridedCopy& copy, Index begin, Index bytes, F f) {
  for (Index at = begin; at < begin + bytes;) {
    const Index run = at / copy.run_bytes, skip = at % copy.run_bytes, left = begin + bytes - at;
    const StridedCopy box =
        skip > 0 || left < copy.run_bytes
            ? part_of_run(copy, run, skip, std::min(copy.run_bytes - skip, left))
            : whole_runs(copy, run, left / copy.run_bytes);
    f(box, at - begin);
    at += box.bytes();
  }
}

}  // namespace

Index pack(PackCursor& cursor, const std::byte* src, std::span<std::byte> out, CopyHint hint) {
  const Index bytes = std::min(static_cast<Index>(out.size()), cursor.left());
  for_each_box(cursor.copy(), cursor.done(), bytes, [&](const StridedCopy& box, Index at) {
    run_copy(packed_destination(box, at), src, out.data(), hint);
  });
  cursor.seek(cursor.done() + bytes);
  return bytes;
}

Index unpack(PackCursor& cursor, std::span<const std::byte> in, std::byte* dst, CopyHint hint) {
  const Index bytes = std::min(static_cast<Index>(in.size()), cursor.left());
  for_each_box(cursor.copy(), cursor.done(), bytes, [&](const StridedCopy& box, Index at) {
    run_copy(packed_source(box, at), in.data(), dst, hint);
  });
  cursor.seek(cursor.done() + bytes);
  return bytes;
}

}  // namespace reshard
