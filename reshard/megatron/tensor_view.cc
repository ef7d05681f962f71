// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/tensor_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/transform/copy.h"

namespace reshard::megatron {
namespace {

/// Limit on the elements of a view, gaps included: no machine has more, and bits do not overflow.
constexpr Index kMaxElements = Index{1} << 54;

/// Bytes of an array of this shape.
Result<Index> checked_bytes(DType dtype, const Dims& shape) {
  Index elements = 1;
  for (Index n : shape)
    if (n < 0 || __builtin_mul_overflow(elements, n, &elements))
      return invalid(fmt::format("shape {} is negative or overflows", to_string(shape)));
  const auto bytes = reshard::bytes_of(dtype, elements);
  if (!bytes)
    return invalid(fmt::format("{} elements of {} are not whole bytes", elements, name(dtype)));
  return *bytes;
}

/// Checks that byte offsets in the view can be computed.
Result<> check_extent(const TensorView& view) {
  Index last = 0;
  bool fits = view.strides.size() == view.shape.size();
  for (int i = 0; fits && i < view.shape.size(); ++i) {
    Index reach = 0;
    fits = view.strides[i] >= 0 &&
           !__builtin_mul_overflow(view.shape[i] - 1, view.strides[i], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  if (fits && last < kMaxElements) return {};
  return invalid(fmt::format("strides {} of shape {} are negative or overflow",
                             to_string(view.strides), to_string(view.shape)));
}

}  // namespace

tl::unexpected<Error> invalid(const std::string& what) {
  return fail(Code::invalid_argument, what);
}

tl::unexpected<Error> invalid_parameter(std::string_view name, std::string_view what) {
  return fail(Code::invalid_argument, fmt::format("parameter '{}': {}", name, what));
}

Result<TensorView> tensor_view(std::span<std::byte> bytes, DType dtype, const Dims& shape) {
  const Index want = RESHARD_TRY(checked_bytes(dtype, shape));
  if (want != static_cast<Index>(bytes.size()))
    return invalid(fmt::format("{} bytes for {} {}, which needs {}", bytes.size(), name(dtype),
                               to_string(shape), want));
  return TensorView{bytes.data(), dtype, shape, row_major(shape)};
}

bool is_contiguous(const TensorView& view) {
  const Dims packed = row_major(view.shape);
  if (volume(view.shape) == 0) return true;
  for (int i = 0; i < view.shape.size(); ++i)
    if (view.shape[i] > 1 && view.strides[i] != packed[i]) return false;
  return true;
}

Index num_bytes(const TensorView& view) { return view.num_elements() * bits(view.dtype) / 8; }

std::span<std::byte> bytes_of(const TensorView& view) {
  return {view.data, static_cast<std::size_t>(num_bytes(view))};
}

Result<Box> box_of(const Slice& slice, const Dims& shape) {
  const int named = static_cast<int>(slice.size());
  if (slice.size() > kMaxDims || named > shape.size())
    return invalid(
        fmt::format("a slice has {} dimensions, more than shape {}", named, to_string(shape)));
  std::vector<Interval> dims;
  for (int i = 0; i < shape.size(); ++i) {
    const DimSlice at = i < named ? slice[static_cast<std::size_t>(i)] : all();
    const Index begin = at.start.value_or(0);
    const Index end = at.is_index ? begin + 1 : at.stop.value_or(shape[i]);
    if (begin < 0 || end < begin || end > shape[i])
      return invalid(fmt::format("slice [{}, {}) is not inside dimension {} of shape {}", begin,
                                 end, i, to_string(shape)));
    dims.emplace_back(begin, end);
  }
  return Box(dims);
}

Slice slice_of(const Box& box) {
  Slice out;
  for (int i = 0; i < box.rank(); ++i) out.push_back(range(box[i].begin(), box[i].end()));
  return out;
}

Result<TensorView> slice(const TensorView& view, const Box& box) {
  if (box.rank() != view.shape.size() || !contains(Box::whole(view.shape), box))
    return invalid(
        fmt::format("slice {} is not inside an array {}", to_string(box), to_string(view.shape)));
  Index offset = 0;
  for (int i = 0; i < box.rank(); ++i) offset += box[i].begin() * view.strides[i];
  const Index at = offset * bits(view.dtype);
  if (at % 8 != 0)
    return fail(Code::unsupported, fmt::format("slice {} of {} does not begin at a byte boundary",
                                               to_string(box), name(view.dtype)));
  return TensorView{view.data == nullptr ? nullptr : view.data + at / 8, view.dtype, box.shape(),
                    view.strides};
}

Result<StridedCopy> copy_between(const TensorView& from, const TensorView& to) {
  if (from.dtype != to.dtype || !(from.shape == to.shape))
    return invalid(fmt::format("cannot copy {} {} into {} {}", name(from.dtype),
                               to_string(from.shape), name(to.dtype), to_string(to.shape)));
  if (RESHARD_TRY(checked_bytes(from.dtype, from.shape)) == 0) return StridedCopy{};
  for (const TensorView* view : {&from, &to}) RESHARD_TRY(check_extent(*view));
  return make_copy(from.shape, Strided{0, from.strides}, Strided{0, to.strides}, bits(from.dtype));
}

Result<StridedCopy> packing_of(const TensorView& view) {
  if (RESHARD_TRY(checked_bytes(view.dtype, view.shape)) == 0) return StridedCopy{};
  return copy_between(view, {nullptr, view.dtype, view.shape, row_major(view.shape)});
}

Result<> copy(const TensorView& from, const TensorView& to) {
  const StridedCopy run = RESHARD_TRY(copy_between(from, to));
  if (run.bytes() > 0) run_copy(run, from.data, to.data, CopyHint::cached);
  return {};
}

Result<OwnedTensor> make_tensor(DType dtype, const Dims& shape) {
  const Index bytes = RESHARD_TRY(checked_bytes(dtype, shape));
  OwnedTensor out;
  out.memory = std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes));
  out.view = {out.memory.get(), dtype, shape, row_major(shape)};
  return out;
}

}  // namespace reshard::megatron
