// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

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

}  // namespace reshard
