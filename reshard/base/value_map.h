// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reshard/base/dtype.h"

namespace reshard {

/// How a stored number comes from the canonical one. Computed in float, then rounded to nearest
/// even to the stored dtype.
enum class ValueMap : std::uint8_t {
  identity,
  negated_exp,  ///< -exp(x): vLLM's A of a Mamba mixer's A_log.
  plus_one,     ///< x + 1: a norm's weight, of one that the checkpoint keeps centred on zero.
  minus_one,    ///< x - 1: a norm centred on zero, of one that the checkpoint keeps as it is.
};

/// "identity", "negated_exp", "plus_one", "minus_one".
constexpr std::string_view name(ValueMap map) {
  switch (map) {
    case ValueMap::identity: return "identity";
    case ValueMap::negated_exp: return "negated_exp";
    case ValueMap::plus_one: return "plus_one";
    case ValueMap::minus_one: return "minus_one";
  }
  return "identity";
}

/// How a local tensor stores canonical values.
struct StoredForm {
  DType dtype = DType::bf16;
  ValueMap map = ValueMap::identity;
  friend constexpr bool operator==(const StoredForm&, const StoredForm&) = default;
};

/// From one form to another of the same canonical values.
struct Conversion {
  StoredForm from, to;
  /// False where bits are copied as they are.
  constexpr bool converts() const { return !(from == to); }
  friend constexpr bool operator==(const Conversion&, const Conversion&) = default;
};

/// True for f16, bf16 and f32: the dtypes that values are converted between.
constexpr bool is_convertible(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32;
}

/// True where some canonical value does not survive the way there and back: the target dtype has
/// fewer exponent or mantissa bits, or a map rounds.
bool loses_precision(const Conversion& conversion);

/// "BF16", "F32 as negated_exp".
std::string to_string(const StoredForm& form);

}  // namespace reshard
