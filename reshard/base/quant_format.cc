// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/quant_format.h"

#include <fmt/format.h>

#include <array>
#include <vector>

namespace reshard {
namespace {

struct FormatRow {
  std::string_view name;
  QuantFormat format;
};

constexpr QuantFormat mxfp(DType data, ScaleRule rule, ScaleOrder order) {
  return {.data = data, .rule = rule, .order = order};
}

constexpr QuantFormat nvfp4(ScaleOrder order, bool divides = false) {
  return {.data = DType::f4,
          .scale = DType::f8_e4m3,
          .block_cols = 16,
          .rule = ScaleRule::exact,
          .order = order,
          .tensor_factor = true,
          .factor_divides = divides};
}

constexpr QuantFormat fp8(std::int32_t rows, std::int32_t cols, ScaleRule rule) {
  return {.scale = DType::f32, .block_rows = rows, .block_cols = cols, .rule = rule};
}

constexpr QuantFormat integers(DType data, std::int32_t cols) {
  return {.data = data, .scale = DType::bf16, .block_cols = cols, .rule = ScaleRule::exact};
}

constexpr std::array kFormatRows = {
    FormatRow{"mxfp8", mxfp(DType::f8_e4m3, ScaleRule::up, ScaleOrder::rows)},
    FormatRow{"mxfp8_floor", mxfp(DType::f8_e4m3, ScaleRule::floor, ScaleOrder::rows)},
    FormatRow{"mxfp8_swizzled", mxfp(DType::f8_e4m3, ScaleRule::up, ScaleOrder::swizzled)},
    FormatRow{"mxfp4", mxfp(DType::f4, ScaleRule::up, ScaleOrder::rows)},
    FormatRow{"mxfp4_floor", mxfp(DType::f4, ScaleRule::floor, ScaleOrder::rows)},
    FormatRow{"mxfp4_swizzled", mxfp(DType::f4, ScaleRule::up, ScaleOrder::swizzled)},
    FormatRow{"nvfp4", nvfp4(ScaleOrder::rows)},
    FormatRow{"nvfp4_swizzled", nvfp4(ScaleOrder::swizzled)},
    FormatRow{"nvfp4_divisor", nvfp4(ScaleOrder::rows, true)},
    FormatRow{"fp8_block", fp8(128, 128, ScaleRule::exact)},
    FormatRow{"fp8_block_pow2", fp8(128, 128, ScaleRule::up)},
    FormatRow{"fp8_group", fp8(1, 128, ScaleRule::exact)},
    FormatRow{"fp8_group_pow2", fp8(1, 128, ScaleRule::up)},
    FormatRow{"fp8_channel", fp8(1, 0, ScaleRule::exact)},
    FormatRow{"fp8_tensor", fp8(0, 0, ScaleRule::exact)},
    FormatRow{"int4_group32", integers(DType::i4, 32)},
    FormatRow{"int4_group64", integers(DType::i4, 64)},
    FormatRow{"int4_group128", integers(DType::i4, 128)},
    FormatRow{"int4_channel", integers(DType::i4, 0)},
    FormatRow{"int8_channel", integers(DType::i8, 0)},
    FormatRow{"int8_packed_group128", integers(DType::u8, 128)},
    FormatRow{"int8_packed_channel", integers(DType::u8, 0)},
};

std::string_view name(ScaleRule rule) {
  switch (rule) {
    case ScaleRule::exact: return "exact";
    case ScaleRule::up: return "up";
    case ScaleRule::floor: return "floor";
  }
  return "unknown";
}

std::string side(std::int32_t elements) { return elements == 0 ? "*" : fmt::to_string(elements); }

}  // namespace

std::optional<QuantFormat> quant_format_from_name(std::string_view name) {
  for (const FormatRow& row : kFormatRows)
    if (row.name == name) return row.format;
  return std::nullopt;
}

std::string to_string(const QuantFormat& format) {
  for (const FormatRow& row : kFormatRows)
    if (row.format == format) return std::string(row.name);
  std::string text = fmt::format("{} {}x{} {} {}", name(format.data), side(format.block_rows),
                                 side(format.block_cols), name(format.scale), name(format.rule));
  if (format.order == ScaleOrder::swizzled) text += " swizzled";
  if (format.tensor_factor) text += format.factor_divides ? " divisor" : " factor";
  if (format.zero_block != 0) text += fmt::format(" zero {}", format.zero_block);
  return text;
}

std::string known_quant_formats() {
  std::vector<std::string_view> names;
  for (const FormatRow& row : kFormatRows) names.push_back(row.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace reshard
