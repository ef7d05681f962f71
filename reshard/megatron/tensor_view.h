// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/dtype.h"
#include "reshard/base/result.h"
#include "reshard/index/box.h"
#include "reshard/layout/strided.h"

namespace reshard::megatron {

/// A typed array in borrowed memory. Strides count elements. Row-major and contiguous, unless it is
/// a slice of another array.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::bf16;
  Dims shape;
  Dims strides;

  Index num_elements() const { return volume(shape); }
};

/// All of `bytes` as an array of this shape. Errors: the shape is negative, overflows, or does not
/// need exactly these bytes.
Result<TensorView> tensor_view(std::span<std::byte> bytes, DType dtype, const Dims& shape);

/// True if the elements are in row-major order without gaps.
bool is_contiguous(const TensorView& view);

/// Bytes of the elements, without gaps.
Index num_bytes(const TensorView& view);

/// The bytes of a contiguous view. @pre is_contiguous(view)
std::span<std::byte> bytes_of(const TensorView& view);

/// One dimension of an index expression: a range whose ends may be open, or one index.
struct DimSlice {
  std::optional<Index> start, stop;
  bool is_index = false;  ///< only `start` is used.
  friend bool operator==(const DimSlice&, const DimSlice&) = default;
};
inline DimSlice all() { return {}; }
inline DimSlice range(Index start, Index stop) { return {start, stop, false}; }
inline DimSlice index(Index at) { return {at, std::nullopt, true}; }

/// An index expression as in Python's tensor[a:b, :, 3]. Trailing dimensions may be left out.
using Slice = std::vector<DimSlice>;

/// The box of a slice in an array of this shape; an index becomes a range of length 1. Errors: more
/// dimensions than the shape has; ends that are negative, reversed or out of range.
Result<Box> box_of(const Slice& slice, const Dims& shape);
/// The inverse of box_of().
Slice slice_of(const Box& box);

/// The part of the array in `box`. Errors: the box is not inside the shape; its 4- or 6-bit
/// elements do not begin at a byte boundary.
Result<TensorView> slice(const TensorView& view, const Box& box);

/// The copy of all elements from `from.data` to `to.data`; both arrays may have gaps. Errors:
/// shapes or dtypes differ; runs of 4- or 6-bit elements that are not whole bytes; a view that is
/// larger than memory, or whose strides are negative.
Result<StridedCopy> copy_between(const TensorView& from, const TensorView& to);
/// The copy of all elements, in order, to adjacent bytes. Errors: as above.
Result<StridedCopy> packing_of(const TensorView& view);
/// Copies elements. Errors: those of copy_between(). @pre they do not overlap
Result<> copy(const TensorView& from, const TensorView& to);

/// An array that owns its bytes. Moving it does not move the bytes.
struct OwnedTensor {
  std::unique_ptr<std::byte[]> memory;
  TensorView view;
};
/// An array of zeros. Errors: the shape is negative or overflows.
Result<OwnedTensor> make_tensor(DType dtype, const Dims& shape);

/// `invalid_argument` errors; the second names a parameter.
tl::unexpected<Error> invalid(const std::string& what);
tl::unexpected<Error> invalid_parameter(std::string_view name, std::string_view what);

}  // namespace reshard::megatron
