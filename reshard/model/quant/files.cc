// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/quant/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

namespace reshard {
namespace {

struct Row {
  QuantMethod method;
  std::string_view name;
};

constexpr std::array kMethods = {Row{QuantMethod::fp8, "fp8"},
                                 Row{QuantMethod::mxfp4, "mxfp4"},
                                 Row{QuantMethod::modelopt, "modelopt"},
                                 Row{QuantMethod::compressed_tensors, "compressed-tensors"},
                                 Row{QuantMethod::fbgemm_fp8, "fbgemm_fp8"},
                                 Row{QuantMethod::deepseek_v4, "deepseek_v4"}};

bool is_written(const Row& row) { return row.method != QuantMethod::deepseek_v4; }

bool is_fp8(const QuantFormat& f) { return f.data == DType::f8_e4m3 && f.scale == DType::f32; }

bool is_mxfp4(const QuantFormat& f) {
  return f.data == DType::f4 && f.scale == DType::f8_e8m0 && f.block_rows == 1 &&
         f.block_cols == 32;
}

constexpr std::string_view kFactorSuffix = "_scale_2";

/// The names of compressed-tensors for 4-bit data and the factor.
std::string renamed(const QuantFormat& f, QuantPart part, std::string name) {
  if (part == QuantPart::data)
    return bits(f.data) < 8 || has_packed_integers(f) ? name + "_packed" : name;
  if (part != QuantPart::factor || !name.ends_with(kFactorSuffix)) return name;
  name.resize(name.size() - kFactorSuffix.size());
  return name + "_global_scale";
}

bool is_among(const QuantFormat& f, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view name) { return quant_format_from_name(name) == f; });
}

Dims without_ones(const Dims& shape) {
  Dims out;
  for (const Index size : shape)
    if (size != 1) out.push_back(size);
  return out;
}

bool is_one_number(const QuantFormat& f, QuantPart part) {
  return part == QuantPart::factor || is_one_block(f);
}

/// The shape of scales: one scale per row is a vector; blocks have a dimension of size 1 after each
/// of theirs.
Dims modelopt_shape(const QuantFormat& f, QuantPart part, const Dims& shape) {
  if (is_one_number(f, part) || shape.size() != 2) return shape;
  if (f.block_cols == 0) return {shape[0]};
  return f.block_rows > 1 ? Dims{shape[0], 1, shape[1], 1} : shape;
}

Result<FileTensor> in_mxfp4(QuantPart part, const std::string& tensor, const Dims& shape) {
  constexpr Index kBlock = 32, kBytes = 16;
  FileTensor out{tensor + (part == QuantPart::data ? "_blocks" : "_scales"), DType::u8, shape};
  if (part != QuantPart::data) return out;
  Index& cols = out.shape[out.shape.size() - 1];
  if (cols % kBlock != 0)
    return fail(Code::unsupported,
                fmt::format("'{}' has {} inputs; files of mxfp4 hold whole blocks of {}", tensor,
                            cols, kBlock));
  cols /= kBlock;
  out.shape.push_back(kBytes);
  return out;
}

FileTensor in_deepseek_v4(QuantPart part, const std::string& tensor, DType dtype,
                          const Dims& shape) {
  if (part == QuantPart::scales) return {name_of_deepseek_scale(tensor), dtype, shape};
  FileTensor out{tensor, dtype, shape};
  if (dtype == DType::f4) {
    out.dtype = DType::i8;
    out.shape[shape.size() - 1] /= 2;
  }
  return out;
}

}  // namespace

std::string_view name(QuantMethod method) {
  return kMethods[static_cast<std::size_t>(method)].name;
}

std::optional<QuantMethod> quant_method_from_name(std::string_view name) {
  for (const Row& row : kMethods)
    if (row.name == name && is_written(row)) return row.method;
  return std::nullopt;
}

std::string known_quant_methods() {
  std::vector<std::string_view> names;
  for (const Row& row : kMethods)
    if (is_written(row)) names.push_back(row.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

bool supports(QuantMethod method, const QuantFormat& f) {
  if (f.order != ScaleOrder::rows) return false;
  switch (method) {
    case QuantMethod::fp8: return is_fp8(f) && (f.block_rows > 0) == (f.block_cols > 0);
    case QuantMethod::mxfp4: return is_mxfp4(f);
    case QuantMethod::fbgemm_fp8: return is_among(f, {"fp8_channel"});
    case QuantMethod::modelopt:
      return is_among(f, {"fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "nvfp4"});
    case QuantMethod::compressed_tensors:
      return is_mxfp4(f) || is_among(f, {"mxfp8", "nvfp4_divisor"}) ||
             (is_fp8(f) && (f.block_rows > 0 || f.block_cols == 0)) ||
             (has_integers(f) && f.block_rows == 1);
    case QuantMethod::deepseek_v4: return false;
  }
  return false;
}

std::optional<QuantMethod> default_quant_method(const QuantFormat& format, bool input_first) {
  if (input_first)
    return supports(QuantMethod::mxfp4, format) ? std::optional(QuantMethod::mxfp4) : std::nullopt;
  for (const QuantMethod method :
       {QuantMethod::fp8, QuantMethod::compressed_tensors, QuantMethod::modelopt})
    if (supports(method, format)) return method;
  return std::nullopt;
}

Result<FileTensor> in_files(QuantMethod method, const QuantFormat& format, QuantPart part,
                            const std::string& tensor, DType dtype, const Dims& shape) {
  const int dims = method == QuantMethod::mxfp4 ? 3 : 2;
  if (part == QuantPart::data && shape.size() != dims)
    return fail(Code::unsupported,
                fmt::format("'{}' is stored as {}; files of {} hold {}", tensor, to_string(shape),
                            name(method), dims == 2 ? "matrices" : "experts in one tensor each"));
  if (method == QuantMethod::mxfp4) return in_mxfp4(part, tensor, shape);
  if (method == QuantMethod::deepseek_v4) return in_deepseek_v4(part, tensor, dtype, shape);
  constexpr std::array<std::string_view, 3> kEnds = {"", "_scale", kFactorSuffix};
  FileTensor out =
      in_modules(method, format, part, tensor + std::string(kEnds[static_cast<std::size_t>(part)]),
                 dtype, shape);
  if (method == QuantMethod::fp8 && part == QuantPart::scales && format.block_cols > 0)
    out.name += "_inv";
  // A scale or factor of the whole tensor is a scalar.
  if (method == QuantMethod::modelopt && part != QuantPart::data && is_one_number(format, part) &&
      volume(shape) == 1)
    out.shape = {};
  return out;
}

bool is_input_scale(std::string_view name) {
  return name.ends_with(".input_scale") || name.ends_with(".input_global_scale") ||
         name.ends_with(".input_scale_ub") || name.ends_with(".input_zero_point");
}

bool names_cache_scale(std::string_view name) {
  constexpr std::array<std::string_view, 3> kScales = {".k_scale", ".v_scale", ".q_scale"};
  return name.find(".self_attn.") != std::string_view::npos &&
         std::ranges::any_of(kScales, [&](std::string_view end) { return name.ends_with(end); });
}

bool names_activation_scale(std::string_view name) {
  return is_input_scale(name) || names_cache_scale(name);
}

bool reads_as(DType stored, DType wanted, const QuantFormat& format) {
  using enum DType;
  if (stored == wanted) return true;
  if (wanted == u8) return stored == f8_e8m0 && format.scale == f8_e8m0;
  if (wanted != f32) return false;
  return stored == bf16 || stored == f16 || stored == f8_e8m0 ||
         (stored == u8 && format.rule != ScaleRule::exact);
}

FileTensor in_modules(std::optional<QuantMethod> method, const QuantFormat& format, QuantPart part,
                      std::string name, DType dtype, const Dims& shape) {
  FileTensor out{std::move(name), dtype, shape};
  if (method == QuantMethod::compressed_tensors || format.factor_divides || has_integers(format))
    out.name = renamed(format, part, std::move(out.name));
  if (method == QuantMethod::modelopt && part != QuantPart::data)
    out.shape = modelopt_shape(format, part, shape);
  if (dtype == DType::f8_e8m0 || dtype == DType::f4) out.dtype = DType::u8;
  if (dtype == DType::f4 && shape.size() > 0) out.shape[shape.size() - 1] /= 2;
  if (part == QuantPart::data && has_packed_integers(format)) {
    out.dtype = DType::i32;
    out.shape[shape.size() - 1] /= packed_together(format);
  }
  return out;
}

std::string name_of_deepseek_scale(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.') + 1) + "scale";
}

std::string name_of_packed_shape(const std::string& tensor) { return tensor + "_shape"; }

Index packed_together(const QuantFormat& format) {
  if (has_packed_integers(format)) return 32 / bits(format.data);
  return bits(format.data) < 8 ? 2 : 1;
}

std::string scale_suffix_of(QuantMethod method) {
  return method == QuantMethod::fp8 || method == QuantMethod::mxfp4 ? "" : "_scale";
}

bool same_shape(const Dims& a, const Dims& b) {
  return a == b || without_ones(a) == without_ones(b);
}

}  // namespace reshard
