// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/transforms.h"

#include <fmt/format.h>

#include "reshard/megatron/mxfp8_tensor.h"

namespace reshard::megatron {
namespace {

tl::unexpected<Error> unimplemented(std::string_view what, std::string_view param_name) {
  return fail(Code::unsupported, fmt::format("parameter '{}': should_transform() is true but {} is "
                                             "not implemented",
                                             param_name, what));
}

}  // namespace

bool ReshardTransform::should_transform(std::string_view) const { return false; }

Result<std::vector<WireTensor>> ReshardTransform::prepare_send(std::string_view,
                                                               const Box& src_slice,
                                                               const Tensor& src_param,
                                                               const Box&) {
  WireTensor whole = RESHARD_TRY(ensure_sendable(src_param));
  whole.view = RESHARD_TRY(slice(whole.view, src_slice));
  return std::vector<WireTensor>{std::move(whole)};
}

Result<std::vector<WireTensor>> ReshardTransform::prepare_recv(std::string_view param_name,
                                                               const Box&) {
  return unimplemented("prepare_recv", param_name);
}

Result<> ReshardTransform::finalize_recv(std::string_view param_name, const Box&,
                                         std::span<const WireTensor>) {
  return unimplemented("finalize_recv", param_name);
}

void ReshardTransform::begin() {}

Result<> ReshardTransform::finish() { return {}; }

Result<Slice> scale_slice_from_data_slice(const Slice& data_slice, Index block_size) {
  if (data_slice.empty() || block_size < 1)
    return fail(Code::invalid_argument,
                "a slice of scales needs at least one dimension and a positive block_size");
  Slice out = data_slice;
  DimSlice& last = out.back();
  if (last.is_index) {
    last.start = last.start.value_or(0) / block_size;
    return out;
  }
  for (auto* end : {&last.start, &last.stop}) {
    if (!*end) continue;
    if (**end % block_size != 0)
      return fail(Code::invalid_argument,
                  fmt::format("an MXFP8 slice begins or ends at {} in its last dimension, which "
                              "is not a multiple of {}",
                              **end, block_size));
    *end = **end / block_size;
  }
  return out;
}

Result<WireTensor> ensure_sendable(const Tensor& param) {
  if (param.mxfp8 == nullptr) return WireTensor{param.view, param.owner};
  auto plain = std::make_shared<OwnedTensor>(RESHARD_TRY(dequantised(*param.mxfp8)));
  const TensorView view = plain->view;
  return WireTensor{view, std::move(plain)};
}

}  // namespace reshard::megatron
