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

namespace reshard::megatron {

/// A typed array in memory that is borrowed. Strides count elements; row-major and without gaps
/// unless it is a slice of another.
struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::bf16;
  Dims shape;
  Dims strides;

  Index num_elements() const { return volume(shape); }
};

/// All of `bytes` as an array of this shape. Errors: a shape that is negative, overflows or whose
/// bytes are not those given.
Result<TensorView> tensor_view(std::span<std::byte> bytes, DType dtype, const Dims& shape);

/// True where the elements follow each other without gaps, in row-major order.
bool is_contiguous(const TensorView& view);

/// Bytes of the elements, gaps not counted.
Index num_bytes(const TensorView& view);

/// The bytes of a contiguous view. @pre is_contiguous(view)
std::span<std::byte> bytes_of(const TensorView& view);

/// One dimension of an index expression: a range with ends that may be open, or one index.
struct DimSlice {
  std::optional<Index> start, stop;
  bool is_index = false;  ///< `start` alone counts.
  friend bool operator==(const DimSlice&, const DimSlice&) = default;
};
inline DimSlice all() { return {}; }
inline DimSlice range(Index start, Index stop) { return {start, stop, false}; }
inline DimSlice index(Index at) { return {at, std::nullopt, true}; }

/// As Python's tensor[a:b, :, 3]; dimensions that are not named are whole.
using Slice = std::vector<DimSlice>;

/// The box of a slice in an array of this shape; an index is a range of one. Errors: more
/// dimensions than the shape has, ends that are negative, reversed or beyond the shape.
Result<Box> box_of(const Slice& slice, const Dims& shape);
/// The slice that names this box.
Slice slice_of(const Box& box);

/// The part of the array in `box`. Errors: the box is not inside the shape; elements of 4 or 6 bits
/// that do not begin at a byte.
Result<TensorView> slice(const TensorView& view, const Box& box);

/// Copies elements; both may have gaps. Errors: shapes or dtypes differ, 4- or 6-bit runs that are
/// no whole bytes. @pre the two do not overlap
Result<> copy(const TensorView& from, const TensorView& to);

/// An array that owns its bytes; the view stays where it is when this is moved.
struct OwnedTensor {
  std::unique_ptr<std::byte[]> memory;
  TensorView view;
};
/// Zeros. Errors: a shape that is negative or overflows.
Result<OwnedTensor> make_tensor(DType dtype, const Dims& shape);

/// An argument is wrong: `what`; or that of a parameter by name.
tl::unexpected<Error> invalid(const std::string& what);
tl::unexpected<Error> invalid_parameter(std::string_view name, std::string_view what);

}  // namespace reshard::megatron
