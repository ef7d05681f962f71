// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/mxfp8_tensor.h"

#include <fmt/format.h>

#include "reshard/base/value_map.h"
#include "reshard/transform/quantise.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard::megatron {
namespace {

QuantFormat format_of(bool swizzled) {
  QuantFormat format;
  format.order = swizzled ? ScaleOrder::swizzled : ScaleOrder::rows;
  return format;
}

QuantMatrix matrix_of(const MXFP8Tensor& t) {
  return {.format = format_of(t.swizzled()),
          .data = t.data.data,
          .rows = t.rows(),
          .cols = t.cols(),
          .row_bytes = t.cols(),
          .scales = t.scale.data,
          .scale_row_bytes = t.cols() / kMxfp8Block,
          .factor = nullptr};
}

FloatMatrix matrix_of(const TensorView& v) {
  return {v.data, v.dtype, v.shape[0], v.shape[1], v.strides[0] * bits(v.dtype) / 8};
}

Result<> check_part(const Dims& shape, Index row, Index col, Index per_col,
                    const MXFP8Tensor& into) {
  const bool inside = shape.size() == 2 && row >= 0 && col >= 0 && shape[0] <= into.rows() - row &&
                      shape[1] * per_col <= into.cols() - col;
  if (!inside)
    return invalid(fmt::format("{} at row {}, column {} is not inside an MXFP8 tensor {}",
                               to_string(shape), row, col, to_string(into.data.shape)));
  if (col % kMxfp8Block != 0 || shape[1] * per_col % kMxfp8Block != 0)
    return invalid(fmt::format("columns [{}, {}) cut a block of {}", col, col + shape[1] * per_col,
                               kMxfp8Block));
  return {};
}

}  // namespace

Result<std::shared_ptr<MXFP8Tensor>> make_mxfp8(const Dims& shape, bool swizzled) {
  if (shape.size() != 2 || shape[0] < 0 || shape[1] < 0 || shape[1] % kMxfp8Block != 0)
    return invalid(
        fmt::format("an MXFP8 tensor is a matrix whose columns are a multiple of {}, not {}",
                    kMxfp8Block, to_string(shape)));
  auto out = std::make_shared<MXFP8Tensor>();
  RESHARD_TRY(check_quant_format(format_of(swizzled), shape[0], shape[1]));
  const Index scales = scale_bytes(format_of(swizzled), shape[0], shape[1]);
  auto data = std::make_shared<OwnedTensor>(RESHARD_TRY(make_tensor(DType::f8_e4m3, shape)));
  auto scale = std::make_shared<OwnedTensor>(RESHARD_TRY(make_tensor(
      DType::f8_e8m0, swizzled ? Dims{scales} : Dims{shape[0], shape[1] / kMxfp8Block})));
  out->data = data->view;
  out->scale = scale->view;
  out->data_owner = std::move(data);
  out->scale_owner = std::move(scale);
  return out;
}

Result<> check_mxfp8(const MXFP8Tensor& t) {
  const auto& [data, scale] = std::pair(t.data, t.scale);
  if (data.dtype != DType::f8_e4m3 || data.shape.size() != 2 || !is_contiguous(data) ||
      data.shape[1] % kMxfp8Block != 0)
    return invalid(
        fmt::format("MXFP8 data is {} {}; it is a matrix of F8_E4M3 without gaps whose "
                    "columns are a multiple of {}",
                    name(data.dtype), to_string(data.shape), kMxfp8Block));
  RESHARD_TRY(check_quant_format(format_of(t.swizzled()), t.rows(), t.cols()));
  const Dims want = t.swizzled() ? Dims{scale_bytes(format_of(true), t.rows(), t.cols())}
                                 : Dims{t.rows(), t.cols() / kMxfp8Block};
  const bool bytes = scale.dtype == DType::f8_e8m0 || scale.dtype == DType::u8;
  if (!bytes || !(scale.shape == want) || !is_contiguous(scale))
    return invalid(fmt::format("MXFP8 scales are {} {}; those of {} are F8_E8M0 {}",
                               name(scale.dtype), to_string(scale.shape), to_string(data.shape),
                               to_string(want)));
  return {};
}

Result<> quantise_part(const TensorView& values, Index row, Index col, const MXFP8Tensor& into) {
  RESHARD_TRY(check_part(values.shape, row, col, 1, into));
  if (!is_convertible(values.dtype) || values.strides[1] != 1)
    return invalid(fmt::format("{} values cannot be quantised to MXFP8; only BF16, F16 and F32 can",
                               name(values.dtype)));
  if (values.num_elements() == 0) return {};
  if (values.shape == into.data.shape) {
    quantise(matrix_of(values), matrix_of(into));
    return {};
  }
  QuantMatrix part = matrix_of(into);
  part.format = format_of(false);
  part.data += row * part.row_bytes + col;
  part.rows = values.shape[0];
  part.cols = values.shape[1];
  if (!into.swizzled()) {
    part.scales += row * part.scale_row_bytes + col / kMxfp8Block;
    quantise(matrix_of(values), part);
    return {};
  }
  const auto scales =
      RESHARD_TRY(make_tensor(DType::f8_e8m0, {values.shape[0], values.shape[1] / kMxfp8Block}));
  part.scales = scales.view.data;
  part.scale_row_bytes = scales.view.shape[1];
  quantise(matrix_of(values), part);
  return put_scales(scales.view, row, col, into);
}

Result<> put_scales(const TensorView& scales, Index row, Index col, const MXFP8Tensor& into) {
  RESHARD_TRY(check_part(scales.shape, row, col, kMxfp8Block, into));
  const Index first = col / kMxfp8Block;
  if (!into.swizzled()) {
    const Box box{{row, row + scales.shape[0]}, {first, first + scales.shape[1]}};
    TensorView place = RESHARD_TRY(slice(into.scale, box));
    place.dtype = scales.dtype;
    return copy(scales, place);
  }
  for (Index r = 0; r < scales.shape[0]; ++r)
    for (Index c = 0; c < scales.shape[1]; ++c)
      into.scale.data[swizzled_scale_offset(row + r, first + c, into.cols() / kMxfp8Block)] =
          scales.data[r * scales.strides[0] + c * scales.strides[1]];
  return {};
}

Result<std::shared_ptr<MXFP8Tensor>> from_bf16(const TensorView& values, bool swizzled) {
  auto out = RESHARD_TRY(make_mxfp8(values.shape, swizzled));
  RESHARD_TRY(quantise_part(values, 0, 0, *out));
  return out;
}

Result<OwnedTensor> dequantised(const MXFP8Tensor& tensor) {
  RESHARD_TRY(check_mxfp8(tensor));
  auto out = RESHARD_TRY(make_tensor(DType::bf16, tensor.data.shape));
  if (out.view.num_elements() > 0)
    dequantise_rows(matrix_of(tensor), matrix_of(out.view), 0, tensor.rows());
  return out;
}

}  // namespace reshard::megatron
