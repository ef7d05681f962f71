// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/buffers.h"

#include <array>

#include "reshard/base/value_map.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/quant/files.h"

namespace reshard::families {
namespace {

using enum Held;

/// A model_type, the last components of tensors, and what its classes hold these as.
struct Rule {
  std::string_view type, name;
  Held held;
};

constexpr std::string_view kCorrection = "e_score_correction_bias", kBias = "expert_bias";

// In float32 is what a class makes so or names in _keep_in_fp32_modules_strict. Where a type has
// two names for the same bias, one is that of checkpoints and the other that of modules.
constexpr std::array kRules = {
    Rule{"afmoe", kBias, parameter},
    Rule{"axk1", kCorrection, f32_buffer},
    Rule{"axk2", kCorrection, f32_buffer},
    Rule{"bailing_hybrid", kCorrection, f32_buffer},
    Rule{"bailing_hybrid", kBias, f32_buffer},
    Rule{"beam", kCorrection, f32_buffer},
    Rule{"deepseek_v3", kCorrection, f32_buffer},
    Rule{"deepseek_v32", kCorrection, f32_buffer},
    Rule{"deepseek_v4", kCorrection, f32_buffer},
    Rule{"deepseek_v4", "gate.bias", f32_buffer},
    Rule{"deepseek_v4", "tid2eid", buffer},
    Rule{"diffusion_gemma", "layer_scalar", buffer},
    Rule{"dots1", kCorrection, f32_buffer},
    Rule{"dots3_note", kCorrection, f32_buffer},
    Rule{"dots3_note", "mlp.router_bias", f32_buffer},
    Rule{"ernie4_5_moe", kCorrection, f32_parameter},
    Rule{"ernie4_5_vl_moe", kCorrection, f32_parameter},
    Rule{"exaone_moe", kCorrection, f32_buffer},
    Rule{"gemma4", "layer_scalar", buffer},
    Rule{"gemma4_unified", "layer_scalar", buffer},
    Rule{"glm4_moe", kCorrection, f32_buffer},
    Rule{"glm4_moe_lite", kCorrection, f32_buffer},
    Rule{"glm4v_moe", kCorrection, f32_buffer},
    Rule{"glm5_next", kCorrection, f32_buffer},
    Rule{"glm_moe_dsa", kCorrection, f32_buffer},
    Rule{"hy_v3", kCorrection, f32_buffer},
    Rule{"hy_v3", kBias, f32_buffer},
    Rule{"hy_v4", kCorrection, f32_buffer},
    Rule{"inkling", kCorrection, f32_buffer},
    Rule{"inkling", "mlp.gate.bias", f32_buffer},
    Rule{"inkling2", kCorrection, f32_buffer},
    Rule{"inkling2", "mlp.gate.bias", f32_buffer},
    Rule{"kimi_k2", kCorrection, f32_buffer},
    Rule{"kimi_linear", kCorrection, buffer},
    Rule{"kolibri1", kCorrection, f32_buffer},
    Rule{"kolibri1", kBias, f32_buffer},
    Rule{"laguna", kCorrection, parameter},
    Rule{"lfm2_moe", kBias, f32_buffer},
    Rule{"longcat_flash", kCorrection, buffer},
    Rule{"mimo_v2_flash", kCorrection, f32_buffer},
    Rule{"minimax", "diagonal_decay", buffer},
    Rule{"minimax", "key_decay", buffer},
    Rule{"minimax", "query_decay", buffer},
    Rule{"minimax", "slope_rate", buffer},
    Rule{"minimax_m2", kCorrection, buffer},
    Rule{"minimax_m3_vl", kCorrection, buffer},
    Rule{"muse_spark", kCorrection, f32_buffer},
    Rule{"nemotron_h", kCorrection, f32_buffer},
    Rule{"solar_open", kCorrection, f32_buffer},
    Rule{"step3p5", kCorrection, buffer},
    Rule{"step3p5", "moe.router_bias", buffer},
    Rule{"step3p7", kCorrection, buffer},
    Rule{"step3p7", "moe.router_bias", buffer},
    Rule{"zaya", "balancing_biases", f32_buffer},
};

/// The type of a decoder inside a larger model is that model's with "_text" behind it.
std::string_view family_of(std::string_view type) {
  for (const std::string_view end : {"_text", "_mm_model"})
    if (type.ends_with(end)) type.remove_suffix(end.size());
  return type;
}

/// True if these are the last components of the tensor's name.
bool ends_in(std::string_view tensor, std::string_view name) {
  if (!tensor.ends_with(name)) return false;
  return tensor.size() == name.size() || tensor[tensor.size() - name.size() - 1] == '.';
}

}  // namespace

Held held_as(std::string_view model_type, std::string_view tensor) {
  const std::string_view type = family_of(model_type);
  for (const Rule& rule : kRules)
    if (rule.type == type && ends_in(tensor, rule.name)) return rule.held;
  return ends_in(tensor, kCorrection) || ends_in(tensor, kBias) ? unknown : parameter;
}

std::optional<DType> stored_dtype(const CanonicalTensor& tensor, Held held,
                                  std::optional<DType> chosen) {
  const bool stays =
      !is_convertible(tensor.dtype) || held == Held::unknown || names_activation_scale(tensor.name);
  if (stays) return std::nullopt;
  return held == Held::f32_buffer || held == Held::f32_parameter ? DType::f32 : chosen;
}

}  // namespace reshard::families
