// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reshard/base/dtype.h"

namespace reshard {

/// The function from a canonical value to the stored one. Computed in float, then rounded to
/// nearest even in the stored dtype.
enum class ValueMap : std::uint8_t {
  identity,
  negated_exp,  ///< -exp(x): A in vLLM from A_log of a Mamba mixer.
  plus_one,     ///< x + 1: the weight of a norm that the checkpoint stores zero-centred.
  minus_one,    ///< x - 1: a zero-centred norm that the checkpoint stores as it is.
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

/// The form in which a local tensor stores canonical values.
struct StoredForm {
  DType dtype = DType::bf16;
  ValueMap map = ValueMap::identity;
  friend constexpr bool operator==(const StoredForm&, const StoredForm&) = default;
};

/// A conversion between two forms of the same canonical values.
struct Conversion {
  StoredForm from, to;
  /// False if bits are copied unchanged.
  constexpr bool converts() const { return !(from == to); }
  friend constexpr bool operator==(const Conversion&, const Conversion&) = default;
};

/// True for the dtypes between which values are converted: f16, bf16 and f32.
constexpr bool is_convertible(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32;
}

/// True if converting back may not restore the value: the target dtype has fewer exponent or
/// mantissa bits, or a map rounds.
bool loses_precision(const Conversion& conversion);

/// "BF16", "F32 as negated_exp".
std::string to_string(const StoredForm& form);

}  // namespace reshard
