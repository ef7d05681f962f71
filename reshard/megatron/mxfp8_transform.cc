// SPDX-License-Identifier: Apache-2.0
#include "reshard/megatron/mxfp8_transform.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/value_map.h"
#include "reshard/megatron/reshard_plan.h"
#include "reshard/transform/convert.h"

namespace reshard::megatron {
namespace {

bool whole_blocks(const Box& slice) {
  return slice.rank() == 2 && slice[1].begin() % kMxfp8Block == 0 &&
         slice[1].end() % kMxfp8Block == 0;
}

/// The values as bf16, in which they travel.
Result<WireTensor> as_bf16(WireTensor values) {
  const DType dtype = values.view.dtype;
  if (dtype == DType::bf16) return values;
  if (!is_convertible(dtype))
    return fail(Code::invalid_argument,
                fmt::format("{} values cannot be quantised to MXFP8; only BF16, F16 and F32 can",
                            name(dtype)));
  const auto packed = RESHARD_TRY(make_tensor(dtype, values.view.shape));
  RESHARD_TRY(copy(values.view, packed.view));
  auto out =
      std::make_shared<OwnedTensor>(RESHARD_TRY(make_tensor(DType::bf16, values.view.shape)));
  convert_values({{dtype}, {DType::bf16}}, packed.view.data, out->view.data,
                 out->view.num_elements());
  const TensorView view = out->view;
  return WireTensor{view, std::move(out)};
}

Result<WireTensor> new_tensor(DType dtype, const Dims& shape) {
  auto tensor = std::make_shared<OwnedTensor>(RESHARD_TRY(make_tensor(dtype, shape)));
  const TensorView view = tensor->view;
  return WireTensor{view, std::move(tensor)};
}

Box scale_box(const Box& slice) {
  return slice.with(1, {slice[1].begin() / kMxfp8Block, slice[1].end() / kMxfp8Block});
}

/// The first scale of a slice if scales are 2-D; otherwise null.
const std::byte* scales_at(const MXFP8Tensor& tensor, const Box& slice) {
  if (tensor.swizzled()) return nullptr;
  const Box box = scale_box(slice);
  return tensor.scale.data + box[0].begin() * tensor.scale.shape[1] + box[1].begin();
}

constexpr std::string_view kDecoder = "decoder.";

/// The target's weights that its config wants as MXFP8.
std::vector<NamedTensor> fp8_weights(const Module* model, Module* core, std::string& prefix,
                                     bool& swizzled) {
  std::vector<NamedTensor> out;
  if (core == nullptr) return out;
  const Module* configured = model != nullptr && model->config ? model : core;
  if (!needs_mxfp8_conversion(configured)) return out;
  swizzled = configured->config->swizzled_scales;
  // A model without a child "decoder" is itself one.
  const auto decoder = [](const Module& m) {
    return std::string(m.child("decoder") != nullptr ? kDecoder : "");
  };
  std::vector<std::string> decoders;
  if (core->is_chunk_list) {
    for (const Module::Child& c : core->children())
      decoders.push_back(c.name + "." + decoder(*c.module));
  } else {
    prefix = decoder(*core);
    decoders.push_back(prefix);
  }
  for (NamedTensor& p : named_parameters(*core))
    if (p.tensor->attributes.fp8_weight &&
        std::ranges::any_of(decoders, [&](const auto& d) { return p.name.starts_with(d); }))
      out.push_back(std::move(p));
  return out;
}

}  // namespace

MXFP8ReshardTransform::MXFP8ReshardTransform(std::set<std::string, std::less<>> convertible_params,
                                             PersistentBuffers persistent_buffers,
                                             std::string buffer_key_prefix, bool convert_on_send)
    : convertible_params_(std::move(convertible_params)),
      persistent_buffers_(std::move(persistent_buffers)),
      buffer_key_prefix_(std::move(buffer_key_prefix)),
      convert_on_send_(convert_on_send) {}

bool MXFP8ReshardTransform::should_transform(std::string_view param_name) const {
  return convertible_params_.contains(param_name);
}

bool MXFP8ReshardTransform::quantised_on_wire(const Box& dst_slice) const {
  return convert_on_send_ && whole_blocks(dst_slice);
}

Result<std::vector<WireTensor>> MXFP8ReshardTransform::prepare_send(std::string_view param_name,
                                                                    const Box& src_slice,
                                                                    const Tensor& src_param,
                                                                    const Box& dst_slice) {
  auto plain =
      RESHARD_TRY(ReshardTransform::prepare_send(param_name, src_slice, src_param, dst_slice));
  plain[0] = RESHARD_TRY(as_bf16(std::move(plain[0])));
  if (!quantised_on_wire(dst_slice)) return plain;
  auto small = from_bf16(plain[0].view, false);
  if (!small)
    return tl::unexpected(std::move(small).error().in(fmt::format("parameter '{}'", param_name)));
  return std::vector<WireTensor>{{(*small)->data, *small}, {(*small)->scale, *small}};
}

Result<MXFP8Tensor*> MXFP8ReshardTransform::buffer_of(std::string_view param_name,
                                                      const Box& dst_slice) {
  std::string_view key = param_name;
  if (key.starts_with(buffer_key_prefix_)) key.remove_prefix(buffer_key_prefix_.size());
  const auto it = persistent_buffers_.find(key);
  if (it == persistent_buffers_.end() || it->second == nullptr)
    return fail(Code::not_found,
                fmt::format("parameter '{}': no persistent buffer '{}'", param_name, key));
  MXFP8Tensor& tensor = *it->second;
  RESHARD_TRY(check_mxfp8(tensor));
  if (dst_slice.rank() != 2 || !contains(Box::whole(tensor.data.shape), dst_slice))
    return invalid_parameter(
        param_name, fmt::format("slice {} is not inside its buffer {}", to_string(dst_slice),
                                to_string(tensor.data.shape)));
  return &tensor;
}

Result<std::vector<WireTensor>> MXFP8ReshardTransform::prepare_recv(std::string_view param_name,
                                                                    const Box& dst_slice) {
  const MXFP8Tensor& into = *RESHARD_TRY(buffer_of(param_name, dst_slice));
  Pending& pending = pending_.try_emplace(std::string(param_name)).first->second;
  if (quantised_on_wire(dst_slice)) {
    // Received into place. Scales of a slice are not contiguous in tile order.
    const Dims scales = scale_box(dst_slice).shape();
    WireTensor scale;
    if (into.swizzled()) {
      scale = RESHARD_TRY(new_tensor(DType::f8_e8m0, scales));
    } else {
      scale.view = RESHARD_TRY(slice(into.scale, scale_box(dst_slice)));
      scale.view.dtype = DType::f8_e8m0;
    }
    return std::vector<WireTensor>{{RESHARD_TRY(slice(into.data, dst_slice))}, std::move(scale)};
  }
  if (pending.values == nullptr)
    pending.values =
        std::make_shared<OwnedTensor>(RESHARD_TRY(make_tensor(DType::bf16, into.data.shape)));
  return std::vector<WireTensor>{
      {RESHARD_TRY(slice(pending.values->view, dst_slice)), pending.values}};
}

Result<> MXFP8ReshardTransform::finalize_recv(std::string_view param_name, const Box& dst_slice,
                                              std::span<const WireTensor> recv_buffers) {
  const MXFP8Tensor& into = *RESHARD_TRY(buffer_of(param_name, dst_slice));
  const bool quantised = quantised_on_wire(dst_slice);
  if (recv_buffers.size() != (quantised ? 2 : 1))
    return invalid_parameter(param_name, fmt::format("{} tensors arrived, {} expected",
                                                     recv_buffers.size(), quantised ? 2 : 1));
  const auto at = pending_.try_emplace(std::string(param_name)).first;
  Pending& pending = at->second;
  pending.arrived += dst_slice.volume();
  if (pending.arrived > into.data.num_elements())
    return invalid_parameter(param_name,
                             fmt::format("{} elements arrived, {} expected: a slice arrived twice",
                                         pending.arrived, into.data.num_elements()));
  if (quantised) {
    const TensorView place = RESHARD_TRY(slice(into.data, dst_slice));
    if (place.data != recv_buffers[0].view.data) RESHARD_TRY(copy(recv_buffers[0].view, place));
    const TensorView& scales = recv_buffers[1].view;
    const bool is_there = scales.data == scales_at(into, dst_slice);
    if (!is_there)
      RESHARD_TRY(put_scales(scales, dst_slice[0].begin(), dst_slice[1].begin(), into));
  } else {
    RESHARD_TRY(finalize_values(pending, dst_slice, recv_buffers[0].view, into));
  }
  if (pending.arrived == into.data.num_elements()) pending_.erase(at);
  return {};
}

Result<> MXFP8ReshardTransform::finalize_values(Pending& pending, const Box& slice,
                                                const TensorView& values, const MXFP8Tensor& into) {
  const bool at_once = !into.swizzled() && whole_blocks(slice);
  if (at_once) return quantise_part(values, slice[0].begin(), slice[1].begin(), into);
  if (pending.values == nullptr)
    pending.values =
        std::make_shared<OwnedTensor>(RESHARD_TRY(make_tensor(DType::bf16, into.data.shape)));
  const TensorView place = RESHARD_TRY(megatron::slice(pending.values->view, slice));
  if (place.data != values.data) RESHARD_TRY(copy(values, place));
  if (!into.swizzled() || convert_on_send_) return count_blocks(pending, slice, into);
  if (pending.arrived == into.data.num_elements())
    return quantise_part(pending.values->view, 0, 0, into);
  return {};
}

/// Counts the slice's elements in their blocks, and quantises the blocks that are now complete.
Result<> MXFP8ReshardTransform::count_blocks(Pending& pending, const Box& slice,
                                             const MXFP8Tensor& into) {
  const Index across = into.cols() / kMxfp8Block;
  if (pending.in_block.empty())
    pending.in_block.resize(static_cast<std::size_t>(into.rows() * across));
  for (Index r = slice[0].begin(); r < slice[0].end(); ++r)
    for (Index c = slice[1].begin(); c < slice[1].end();) {
      const Index block = c / kMxfp8Block;
      const Index end = std::min(slice[1].end(), (block + 1) * kMxfp8Block);
      auto& count = pending.in_block[static_cast<std::size_t>(r * across + block)];
      count = static_cast<std::uint8_t>(count + (end - c));
      if (count > kMxfp8Block)
        return fail(Code::invalid_argument,
                    fmt::format("block {} of row {} received an element twice", block, r));
      if (count == kMxfp8Block) {
        const Box whole{{r, r + 1}, {block * kMxfp8Block, (block + 1) * kMxfp8Block}};
        const TensorView values = RESHARD_TRY(megatron::slice(pending.values->view, whole));
        RESHARD_TRY(quantise_part(values, r, block * kMxfp8Block, into));
      }
      c = end;
    }
  return {};
}

Result<> MXFP8ReshardTransform::finish() {
  const auto pending = std::exchange(pending_, {});
  for (const auto& [name, weight] : pending) {
    const MXFP8Tensor& into = *RESHARD_TRY(buffer_of(name, Box{{0, 0}, {0, 0}}));
    if (weight.arrived != into.data.num_elements())
      return invalid_parameter(
          name, fmt::format("{} elements arrived, {} expected: a slice is missing", weight.arrived,
                            into.data.num_elements()));
  }
  return {};
}

bool needs_mxfp8_conversion(const Module* model) {
  return model != nullptr && model->config &&
         model->config->transformer_impl == "inference_optimized" &&
         model->config->fp8_recipe == "mxfp8";
}

Result<> check_mxfp8_weights(const Module* model, Module* core) {
  std::string prefix;
  bool swizzled = false;
  for (const NamedTensor& p : fp8_weights(model, core, prefix, swizzled)) {
    const TensorView& view = p.tensor->view;
    if (view.dtype != DType::bf16 || view.shape.size() != 2 || view.shape[1] % kMxfp8Block != 0)
      return fail(
          Code::invalid_argument,
          fmt::format("parameter '{}': {} {}, but an MXFP8 weight is quantised from a BF16 "
                      "matrix whose columns are a multiple of {}",
                      p.name, reshard::name(view.dtype), to_string(view.shape), kMxfp8Block));
  }
  return {};
}

Result<> setup_mxfp8_transform_on_plan(ReshardPlan& plan, const Module* model, Module* core) {
  if (plan.transform != nullptr) return {};
  RESHARD_TRY(check_mxfp8_weights(model, core));
  std::string prefix;
  bool swizzled = false;
  std::set<std::string, std::less<>> convertible;
  PersistentBuffers buffers;
  for (const NamedTensor& p : fp8_weights(model, core, prefix, swizzled)) {
    if (p.tensor->mxfp8 == nullptr)
      p.tensor->mxfp8 = RESHARD_TRY(from_bf16(p.tensor->view, swizzled));
    convertible.insert(p.name);
    buffers.emplace(p.name.substr(prefix.size()), p.tensor->mxfp8);
  }
  if (convertible.empty()) return {};
  plan.transform =
      std::make_shared<MXFP8ReshardTransform>(std::move(convertible), std::move(buffers), prefix);
  return {};
}

}  // namespace reshard::megatron
