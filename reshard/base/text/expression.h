// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/result.h"

namespace reshard {

/// An expression over whole numbers with names, as layouts write sizes:
///   num_attention_heads * head_dim
///   (num_key_value_heads ?? num_attention_heads) * (head_dim ?? hidden_size / num_attention_heads)
///   ep > 1 && tp == ep
///
/// Operators, from weak to strong: `??` (the right side if a name on the left has no value), `||`,
/// `&&`, comparisons (1 or 0), `+ -`, `* / %`, and parentheses. Names are letters, digits, `_` and
/// `.`, and begin with a letter or `_`. Division is exact.
class Expression {
 public:
  /// The value of a name; none if it has no value.
  using Lookup = std::function<std::optional<std::int64_t>(std::string_view)>;
  static constexpr std::size_t kMaxText = 256;
  static constexpr int kMaxDepth = 16;

  /// A constant: a number is an expression.
  Expression(std::int64_t value = 0);  // NOLINT(google-explicit-constructor)
  /// Errors: Code::corrupt, with the column (from 1); a text longer than kMaxText, or nested more
  /// than kMaxDepth deep.
  static Result<Expression> parse(std::string_view text);

  /// Errors are Code::invalid_argument and name the expression: a name without a value, a division
  /// that is not exact or by 0, a number beyond 64 bits.
  Result<std::int64_t> value(const Lookup& names) const;
  const std::string& text() const { return text_; }
  friend bool operator==(const Expression& a, const Expression& b) { return a.text_ == b.text_; }

 private:
  friend class ExpressionParser;
  enum class Kind : std::uint8_t {
    number,
    name,
    add,
    subtract,
    multiply,
    divide,
    modulo,
    equal,
    unequal,
    less,
    most,
    greater,
    least,
    both,
    either,
    otherwise,
  };
  struct Step {
    Kind kind = Kind::number;
    std::int64_t number = 0;
    std::string name = {};
  };
  /// A value, or the name that has none.
  struct Operand {
    std::int64_t number = 0;
    const std::string* absent = nullptr;
  };
  Result<> apply(Kind kind, Operand& left, const Operand& right) const;

  std::string text_;
  std::vector<Step> steps_;  ///< operands before their operators.
};

}  // namespace reshard
