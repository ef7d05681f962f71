// SPDX-License-Identifier: Apache-2.0
// A target that keeps its weights as MXFP8: found by its config, quantised once, then written in
// place.
#include <fmt/format.h>

#include <algorithm>

#include "reshard/refit/megatron/refit.h"

namespace reshard::megatron {
namespace {

constexpr std::string_view kDecoder = "decoder.";

/// The target's weights that are to be MXFP8; none where its config does not ask for it.
std::vector<NamedTensor> fp8_weights(const Module* model, Module* core, std::string& prefix,
                                     bool& swizzled) {
  std::vector<NamedTensor> out;
  if (core == nullptr) return out;
  const Module* configured = model != nullptr && model->config ? model : core;
  if (!needs_mxfp8_conversion(configured)) return out;
  swizzled = configured->config->swizzled_scales;
  // Without a decoder all of the model is one.
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
          fmt::format("parameter '{}': {} {}; an MXFP8 weight comes from a BF16 matrix "
                      "whose columns are a multiple of {}",
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
