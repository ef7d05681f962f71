// SPDX-License-Identifier: Apache-2.0
#include "reshard/layout/strided.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

namespace reshard {
namespace {

using Loop = StridedCopy::Loop;

/// True if one step of `outer` is as long as all of `inner` on both sides, so that they can be
/// merged.
bool advances_as_one(const Loop& outer, const Loop& inner) {
  return outer.src_stride == inner.src_stride * inner.count &&
         outer.dst_stride == inner.dst_stride * inner.count;
}

/// The loops, in bits: counts above 1, largest destination stride first, merged if they advance as
/// one.
std::vector<Loop> merged_loops(const Dims& shape, const Strided& src, const Strided& dst,
                               int bits) {
  std::vector<Loop> loops;
  for (int i = 0; i < shape.size(); ++i)
    if (shape[i] != 1) loops.push_back({shape[i], src.strides[i] * bits, dst.strides[i] * bits});
  std::stable_sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) {
    return std::abs(a.dst_stride) > std::abs(b.dst_stride);
  });
  std::vector<Loop> out;
  for (const Loop& loop : loops) {
    if (!out.empty() && advances_as_one(out.back(), loop)) {
      out.back() = {out.back().count * loop.count, loop.src_stride, loop.dst_stride};
    } else {
      out.push_back(loop);
    }
  }
  return out;
}

}  // namespace

Dims row_major(const Dims& shape) {
  Dims strides = Dims::filled(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<Index>(shape[i + 1], 1);
  return strides;
}

Strided at(const Strided& whole, const Dims& at) {
  Strided part = whole;
  for (int i = 0; i < at.size(); ++i) part.offset += at[i] * whole.strides[i];
  return part;
}

Result<StridedCopy> make_copy(const Dims& shape, const Strided& src, const Strided& dst,
                              int element_bits) {
  StridedCopy copy;
  for (Index d : shape)
    if (d == 0) return copy;
  auto loops = merged_loops(shape, src, dst, element_bits);
  Index run = element_bits;
  if (!loops.empty() && loops.back().src_stride == run && loops.back().dst_stride == run) {
    run *= loops.back().count;
    loops.pop_back();
  }
  bool whole =
      run % 8 == 0 && src.offset * element_bits % 8 == 0 && dst.offset * element_bits % 8 == 0;
  for (Loop& loop : loops) {
    whole &= loop.src_stride % 8 == 0 && loop.dst_stride % 8 == 0;
    copy.loops[static_cast<std::size_t>(copy.num_loops++)] = {loop.count, loop.src_stride / 8,
                                                              loop.dst_stride / 8};
  }
  if (!whole) {
    return fail(Code::unsupported,
                "a box of shape " + to_string(shape) + " with " + std::to_string(element_bits) +
                    "-bit elements begins or ends inside a byte; cut it at whole bytes");
  }
  copy.src_offset = src.offset * element_bits / 8;
  copy.dst_offset = dst.offset * element_bits / 8;
  copy.run_bytes = run / 8;
  return copy;
}

StridedCopy make_widening_copy(const Dims& shape, const Strided& src, const Strided& dst,
                               int src_width, int dst_width) {
  // First with elements of one byte on both sides, which never fails; then scaled.
  StridedCopy copy = *make_copy(shape, src, dst, 8);
  copy.src_offset *= src_width;
  copy.dst_offset *= dst_width;
  copy.run_bytes *= dst_width;
  for (int i = 0; i < copy.num_loops; ++i) {
    Loop& loop = copy.loops[static_cast<std::size_t>(i)];
    loop.src_stride *= src_width;
    loop.dst_stride *= dst_width;
  }
  if (src_width != dst_width) {
    copy.src_width = static_cast<std::uint8_t>(src_width);
    copy.dst_width = static_cast<std::uint8_t>(dst_width);
  }
  return copy;
}

StridedCopy merged(const StridedCopy& copy) {
  StridedCopy out = copy;
  out.num_loops = 0;
  out.loops = {};
  for (int i = 0; i < copy.num_loops; ++i) {
    const Loop& loop = copy.loops[static_cast<std::size_t>(i)];
    if (loop.count == 1) continue;
    const auto last = static_cast<std::size_t>(std::max(0, out.num_loops - 1));
    if (out.num_loops > 0 && advances_as_one(out.loops[last], loop)) {
      out.loops[last] = {out.loops[last].count * loop.count, loop.src_stride, loop.dst_stride};
    } else {
      out.loops[static_cast<std::size_t>(out.num_loops++)] = loop;
    }
  }
  if (out.num_loops == 0) return out;
  Loop& inner = out.loops[static_cast<std::size_t>(out.num_loops - 1)];
  if (inner.src_stride == out.source_bytes(out.run_bytes) && inner.dst_stride == out.run_bytes) {
    out.run_bytes *= inner.count;
    inner = {};
    --out.num_loops;
  }
  return out;
}

StridedCopy reversed(const StridedCopy& copy) {
  StridedCopy back = copy;
  std::swap(back.src_offset, back.dst_offset);
  std::swap(back.src_width, back.dst_width);
  back.run_bytes = copy.source_bytes(copy.run_bytes);
  for (int i = 0; i < back.num_loops; ++i) {
    Loop& loop = back.loops[static_cast<std::size_t>(i)];
    std::swap(loop.src_stride, loop.dst_stride);
  }
  return back;
}

std::string to_string(const StridedCopy& copy) {
  std::string text = std::to_string(copy.src_offset) + "->" + std::to_string(copy.dst_offset) +
                     " run " + std::to_string(copy.run_bytes);
  for (int i = 0; i < copy.num_loops; ++i) {
    const Loop& loop = copy.loops[static_cast<std::size_t>(i)];
    text += " x " + std::to_string(loop.count) + "(+" + std::to_string(loop.src_stride) + ",+" +
            std::to_string(loop.dst_stride) + ")";
  }
  return text;
}

}  // namespace reshard
