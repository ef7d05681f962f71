// SPDX-License-Identifier: Apache-2.0
#include "reshard/transform/box_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "reshard/base/check.h"
#include "reshard/transform/copy.h"

namespace reshard {
namespace {

/// The largest block that is a copy: columns and bytes. At least a square of cache lines, so that a
/// transposed tensor is read in whole lines, and small enough for the L2 cache.
constexpr Index kBlockColumns = 1024, kBlockBytes = Index{64} << 10;
constexpr Index kMaxBytes = Index{1} << 62;

/// One plane of a box: its rows along the last leading dimension.
struct Plane {
  Index first = 0;   ///< matrix row of the plane's first row.
  Index rows = 1;    ///< along the last leading dimension.
  Index offset = 0;  ///< of its first element, in elements of the local tensor.
  Index stride = 0;  ///< between rows, in elements.
};

/// Calls f(plane) for every index of the leading dimensions except the last of them.
template <class F>
bool for_each_plane(const ByteMatrix& matrix, const Box& box, const Strided& where, F f) {
  const int leading = box.rank() - 1;
  if (leading <= 0) return f(Plane{.offset = where.offset});
  const Dims row_strides =
      row_major(Dims(std::span(matrix.shape.begin(), static_cast<std::size_t>(leading))));
  Dims at = Dims::filled(leading, 0);
  Plane plane{.rows = box[leading - 1].size(), .stride = where.strides[leading - 1]};
  while (true) {
    plane.first = 0;
    plane.offset = where.offset;
    for (int i = 0; i < leading; ++i) {
      plane.first += (box[i].begin() + at[i]) * row_strides[i];
      plane.offset += at[i] * where.strides[i];
    }
    if (!f(plane)) return false;
    int i = leading - 2;
    for (; i >= 0; --i) {
      if (++at[i] < box[i].size()) break;
      at[i] = 0;
    }
    if (i < 0) return true;
  }
}

bool whole_bytes(const ByteMatrix& matrix, const Box& box, const Strided& where) {
  if (matrix.bits % 8 == 0) return true;
  const int last = box.rank() - 1;
  bool whole = where.offset * matrix.bits % 8 == 0;
  for (int i = 0; i < last; ++i)
    whole &= box[i].size() <= 1 || where.strides[i] * matrix.bits % 8 == 0;
  return whole && last >= 0 && where.strides[last] == 1 &&
         box[last].begin() * matrix.bits % 8 == 0 && box[last].size() * matrix.bits % 8 == 0;
}

/// Visits the blocks of a plane whose last dimension is not contiguous, by way of `staging`.
bool staged_blocks(const ByteMatrix& matrix, Interval columns, Index column_stride,
                   const Plane& plane, std::byte* data, Access access, std::byte* staging,
                   const std::function<bool(const RowBlock&)>& f) {
  const Index element = matrix.bits / 8;
  const Index width = std::min(columns.size(), kBlockColumns);
  const Index height = std::max<Index>(kBlockBytes / (width * element), 1);
  for (Index row = 0; row < plane.rows; row += height) {
    const Index rows = std::min(height, plane.rows - row);
    for (Index column = 0; column < columns.size(); column += width) {
      const Index size = std::min(width, columns.size() - column);
      const Strided local{plane.offset + row * plane.stride + column * column_stride,
                          Dims{plane.stride, column_stride}};
      const Strided packed{0, Dims{size, 1}};
      const Dims shape{rows, size};
      if (access == Access::read)
        run_copy(*make_copy(shape, local, packed, matrix.bits), data, staging, CopyHint::cached);
      const bool more = f({.first = plane.first + row,
                           .rows = rows,
                           .begin = (columns.begin() + column) * element,
                           .bytes = size * element,
                           .data = staging,
                           .stride = size * element});
      if (access == Access::write)
        run_copy(*make_copy(shape, packed, local, matrix.bits), staging, data, CopyHint::cached);
      if (!more) return false;
    }
  }
  return true;
}

}  // namespace

Result<ByteMatrix> ByteMatrix::make(const Dims& shape, DType dtype) {
  ByteMatrix m{.shape = shape, .bits = reshard::bits(dtype)};
  Index total = m.bits;
  for (Index d : shape) {
    if (d < 0 || (d > 0 && total > 8 * (kMaxBytes / 8) / d)) {
      return fail(
          Code::invalid_argument,
          fmt::format("a tensor of shape {}: dimensions must be 0 or more and its bytes below 2^59",
                      to_string(shape)));
    }
    total *= std::max<Index>(d, 1);
  }
  const Index last = shape.size() == 0 ? 1 : shape[shape.size() - 1];
  for (int i = 0; i + 1 < shape.size(); ++i) m.rows *= shape[i];
  if (last * m.bits % 8 != 0) {
    return fail(
        Code::unsupported,
        fmt::format("a tensor of shape {} with {}-bit elements: its rows are not whole bytes",
                    to_string(shape), m.bits));
  }
  m.row_bytes = last * m.bits / 8;
  return m;
}

Result<> check_whole_bytes(const ByteMatrix& matrix, const Box& box, const Strided& where) {
  if (whole_bytes(matrix, box, where)) return {};
  return fail(
      Code::unsupported,
      fmt::format("box {} with {}-bit elements begins or ends inside a byte; cut it at whole bytes",
                  to_string(box), matrix.bits));
}

Result<> for_each_row_block(const ByteMatrix& matrix, const Box& box, const Strided& where,
                            std::byte* data, Access access,
                            const std::function<bool(const RowBlock&)>& f) {
  RESHARD_CHECK(box.rank() == matrix.shape.size() && where.strides.size() == box.rank());
  RESHARD_CHECK(contains(Box::whole(matrix.shape), box));
  if (box.empty()) return {};
  RESHARD_TRY(check_whole_bytes(matrix, box, where));
  const Interval columns = box.rank() == 0 ? Interval{0, 1} : box[box.rank() - 1];
  const Index column_stride = box.rank() == 0 ? 1 : where.strides[box.rank() - 1];
  if (columns.size() == 1 || column_stride == 1) {
    for_each_plane(matrix, box, where, [&](const Plane& p) {
      return f({.first = p.first,
                .rows = p.rows,
                .begin = columns.begin() * matrix.bits / 8,
                .bytes = columns.size() * matrix.bits / 8,
                .data = data + p.offset * matrix.bits / 8,
                .stride = p.stride * matrix.bits / 8});
    });
    return {};
  }
  const auto staging =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(kBlockBytes));
  for_each_plane(matrix, box, where, [&](const Plane& p) {
    return staged_blocks(matrix, columns, column_stride, p, data, access, staging.get(), f);
  });
  return {};
}

}  // namespace reshard
