// SPDX-License-Identifier: Apache-2.0
// Formats in the terms of quantise_arithmetic.h.
#pragma once

#include "reshard/base/quant_format.h"
#include "reshard/transform/quantise_arithmetic.h"

namespace reshard {

/// @pre check_quant_format() holds
constexpr ScaleKind scale_kind(const QuantFormat& format) {
  if (format.scale == DType::f8_e4m3) return ScaleKind::e4m3;
  const bool bytes = format.scale == DType::f8_e8m0;
  switch (format.rule) {
    case ScaleRule::exact: break;
    case ScaleRule::up: return bytes ? ScaleKind::e8m0_up : ScaleKind::f32_up;
    case ScaleRule::floor: return bytes ? ScaleKind::e8m0_floor : ScaleKind::f32_floor;
  }
  return ScaleKind::f32_exact;
}

constexpr CodeKind code_kind(const QuantFormat& format) {
  return format.data == DType::f4 ? CodeKind::e2m1 : CodeKind::e4m3;
}

}  // namespace reshard
