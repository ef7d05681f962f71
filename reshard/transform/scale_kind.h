// SPDX-License-Identifier: Apache-2.0
// Formats in the terms of quantise_arithmetic.h.
#pragma once

#include "reshard/base/quant_format.h"
#include "reshard/transform/quantise_arithmetic.h"

namespace reshard {

/// @pre check_quant_format() holds
constexpr ScaleKind scale_kind(const QuantFormat& format) {
  if (format.scale == DType::f8_e4m3) return ScaleKind::e4m3;
  if (format.scale == DType::bf16) return ScaleKind::bf16_exact;
  if (format.scale == DType::f16) return ScaleKind::f16_exact;
  const bool bytes = format.scale == DType::f8_e8m0;
  switch (format.rule) {
    case ScaleRule::exact: break;
    case ScaleRule::up: return bytes ? ScaleKind::e8m0_up : ScaleKind::f32_up;
    case ScaleRule::floor: return bytes ? ScaleKind::e8m0_floor : ScaleKind::f32_floor;
  }
  return ScaleKind::f32_exact;
}

constexpr CodeKind code_kind(const QuantFormat& format) {
  switch (format.data) {
    case DType::f4: return CodeKind::e2m1;
    case DType::i4: return CodeKind::int4;
    case DType::i8: return CodeKind::int8;
    case DType::u8: return CodeKind::uint8;
    default: return CodeKind::e4m3;
  }
}

}  // namespace reshard
