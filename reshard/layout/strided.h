// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "reshard/base/result.h"
#include "reshard/index/box.h"

namespace reshard {

/// The location of the elements of a box in a local tensor. Unit: elements of that tensor.
///
/// The element at position p, relative to the first corner of the box, is at offset + sum_i p[i] *
/// strides[i].
struct Strided {
  Index offset = 0;
  Dims strides;
  friend bool operator==(const Strided&, const Strided&) = default;
};

/// The row-major strides of a tensor with this shape, in elements: the last dimension has stride 1.
Dims row_major(const Dims& shape);

/// The location of the sub-box of `whole` whose first corner is `at`.
/// @pre at.size() == whole.strides.size()
Strided at(const Strided& whole, const Dims& at);

/// One copy between two buffers as nested loops over contiguous runs. Unit: bytes.
///
///   for i0 < loops[0].count ... for ik < loops[k].count:
///     copy run_bytes from src_offset + sum i*src_stride to dst_offset + sum i*dst_stride
///
/// If elements have different widths in source and destination, run_bytes and bytes() count
/// destination bytes, src_* source bytes and dst_* destination bytes; runs are whole elements.
///
/// make_copy() returns a normal form: no loop has count 1, adjacent loops (and the run) that
/// advance as one on both sides are merged, and the loop with the largest destination stride is
/// outermost.
struct StridedCopy {
  struct Loop {
    Index count = 0, src_stride = 0, dst_stride = 0;
    friend bool operator==(const Loop&, const Loop&) = default;
  };
  Index src_offset = 0, dst_offset = 0, run_bytes = 0;
  int num_loops = 0;
  std::array<Loop, kMaxDims> loops{};
  /// Bytes per element if the widths differ; otherwise both are 1.
  std::uint8_t src_width = 1, dst_width = 1;

  /// The number of source bytes for a number of destination bytes.
  Index source_bytes(Index dst_bytes) const {
    return src_width == dst_width ? dst_bytes : dst_bytes / dst_width * src_width;
  }

  Index runs() const {
    Index n = 1;
    for (int i = 0; i < num_loops; ++i) n *= loops[static_cast<std::size_t>(i)].count;
    return n;
  }
  Index bytes() const { return runs() * run_bytes; }
  friend bool operator==(const StridedCopy&, const StridedCopy&) = default;
};

/// The copy of a box with this shape from `src` to `dst`. Errors: `unsupported` if elements are not
/// whole bytes (`element_bits` 4 or 6) and a run or an offset is not either.
/// @pre strides have shape.size() entries; offsets fit in int64 after scaling to bits
Result<StridedCopy> make_copy(const Dims& shape, const Strided& src, const Strided& dst,
                              int element_bits);

/// The same for elements of different widths, in bytes.
/// @pre as for make_copy
StridedCopy make_widening_copy(const Dims& shape, const Strided& src, const Strided& dst,
                               int src_width, int dst_width);

/// The copy in the opposite direction.
StridedCopy reversed(const StridedCopy& copy);

/// The same copy in normal form, but for the order of its loops, which stays.
StridedCopy merged(const StridedCopy& copy);

/// Calls f(src_byte_offset, dst_byte_offset, bytes) for each run, in loop order.
template <class F>
void for_each_run(const StridedCopy& copy, F&& f) {
  std::array<Index, kMaxDims> i{};
  Index src = copy.src_offset, dst = copy.dst_offset;
  if (copy.run_bytes == 0 || copy.runs() == 0) return;
  while (true) {
    f(src, dst, copy.run_bytes);
    int k = copy.num_loops - 1;
    for (; k >= 0; --k) {
      const auto& loop = copy.loops[static_cast<std::size_t>(k)];
      auto& at = i[static_cast<std::size_t>(k)];
      src += loop.src_stride;
      dst += loop.dst_stride;
      if (++at < loop.count) break;
      src -= loop.count * loop.src_stride;
      dst -= loop.count * loop.dst_stride;
      at = 0;
    }
    if (k < 0) return;
  }
}

/// "0->64 run 192 x 2048(+1536,+192)"
std::string to_string(const StridedCopy& copy);

}  // namespace reshard
