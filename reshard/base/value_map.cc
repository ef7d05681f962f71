// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/value_map.h"

namespace reshard {
namespace {

struct FloatShape {
  int exponent_bits, mantissa_bits;
};

FloatShape shape_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return {5, 10};
    case DType::bf16: return {8, 7};
    default: return {8, 23};
  }
}

}  // namespace

bool loses_precision(const Conversion& c) {
  if (!c.converts()) return false;
  if (c.from.map != c.to.map) return true;
  const FloatShape from = shape_of(c.from.dtype), to = shape_of(c.to.dtype);
  return to.exponent_bits < from.exponent_bits || to.mantissa_bits < from.mantissa_bits;
}

std::string to_string(const StoredForm& form) {
  std::string text(name(form.dtype));
  if (form.map != ValueMap::identity) text.append(" as ").append(name(form.map));
  return text;
}

}  // namespace reshard
