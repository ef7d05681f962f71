// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/opaque.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "reshard/base/value_map.h"
#include "reshard/io/checkpoint/stored_model.h"
#include "reshard/io/files/json.h"
#include "reshard/io/identify/stored_scales.h"

namespace reshard::identify {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

/// Codes of numbers, which mean nothing without scales.
bool is_code(DType dtype) {
  using enum DType;
  switch (dtype) {
    case f4:
    case f6_e2m3:
    case f6_e3m2:
    case u8:
    case i8:
    case f8_e5m2:
    case f8_e4m3:
    case f8_e8m0:
    case f8_e4m3fnuz:
    case f8_e5m2fnuz: return true;
    default: return false;
  }
}

/// Names of parts of quantised weights, by the last component: those of compressed-tensors,
/// ModelOpt and FP8; of AWQ and GPTQ; of bitsandbytes. Codes need no name: see is_code().
bool is_named_part(std::string_view name) {
  constexpr std::array<std::string_view, 19> kParts = {"weight_packed",
                                                       "weight_scale",
                                                       "weight_scale_inv",
                                                       "weight_scale_2",
                                                       "weight_zero_point",
                                                       "weight_g_idx",
                                                       "weight_shape",
                                                       "weight_global_scale",
                                                       "input_scale",
                                                       "input_scale_ub",
                                                       "input_global_scale",
                                                       "input_zero_point",
                                                       "qweight",
                                                       "qzeros",
                                                       "scales",
                                                       "g_idx",
                                                       "SCB",
                                                       "absmax",
                                                       "nested_absmax"};
  return std::ranges::find(kParts, name.substr(name.rfind('.') + 1)) != kParts.end();
}

/// True for methods whose weights are always stored as codes. Others (bitnet, torchao) may quantise
/// plain weights when they are loaded.
bool stores_codes(std::string_view method) {
  constexpr std::array<std::string_view, 7> kMethods = {
      "fp8", "mxfp4", "modelopt", "compressed-tensors", "awq", "gptq", "fbgemm_fp8"};
  return std::ranges::find(kMethods, method) != kMethods.end();
}

std::string in_words(const CanonicalTensor& t, const SaidQuantisation& said) {
  const std::string what =
      fmt::format("tensor '{}' is {} {}", t.name, reshard::name(t.dtype), to_string(t.shape));
  if (t.dtype == DType::f64 || t.dtype == DType::c64)
    return what + ", and values are converted between F32, BF16 and F16 only";
  if (said.method.empty()) return what + ", a part of weights whose form no config describes";
  return fmt::format("{}, a part of weights whose form ({}) is not read here", what, said.form);
}

/// Why values cannot change; empty if they can. @param said nothing, if the section is left over
std::string reason(const Model& model, const SaidQuantisation& said) {
  const bool unread = !said.method.empty() && !model.is_dequantised();
  // Codes first: their dtype says most about the form.
  const CanonicalTensor* found = nullptr;
  for (const CanonicalTensor& t : model.tensors->tensors()) {
    if (is_activation_scale(t, *model.tensors)) continue;
    const bool number = t.dtype == DType::f64 || t.dtype == DType::c64;
    if (is_code(t.dtype) || number) return in_words(t, said);
    const bool wide =
        !is_convertible(t.dtype) && t.dtype != DType::boolean && (unread || is_named_part(t.name));
    if (wide && (found == nullptr || is_convertible(found->dtype))) found = &t;
    if (found == nullptr && is_named_part(t.name)) found = &t;
  }
  if (found != nullptr) return in_words(*found, said);
  if (!unread) return "";
  return fmt::format("{} describes weights of a form that is not read here ({})", model.config_path,
                     said.form);
}

}  // namespace

SaidQuantisation said_of(const Model& model) {
  if (model.config_path.empty()) return {};
  if (const auto text = read_text_file(model.config_path, kMaxConfigBytes))
    if (const auto said = said_quantisation(*text, model.config_path);
        said && !said->method.empty())
      return *said;
  const std::string beside = config_beside(model);
  const auto text =
      beside.empty() ? fail(Code::not_found, "") : read_text_file(beside, kMaxConfigBytes);
  const auto said = text ? said_quantisation_beside(*text, beside) : fail(Code::not_found, "");
  return said ? *said : SaidQuantisation{};
}

bool is_left_over(const ModelSpec& tensors, const SaidQuantisation& said) {
  return !said.caches && stores_codes(said.method) &&
         std::ranges::none_of(tensors.tensors(), [](const CanonicalTensor& t) {
           return is_code(t.dtype) || is_named_part(t.name) || is_cache_scale(t);
         });
}

void note_opaque(Model& model) {
  SaidQuantisation said = said_of(model);
  if (!model.is_dequantised() && is_left_over(*model.tensors, said)) {
    model.left_over = fmt::format("its config says quant_method {}, but all tensors are plain",
                                  in_quotes(said.method));
    said = {};
  }
  model.opaque = reason(model, said);
}

}  // namespace reshard::identify
