// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/text/expression.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <span>
#include <utility>

namespace reshard {

/// Recursive descent, one level per strength of operators.
class ExpressionParser {
 public:
  using Kind = Expression::Kind;
  explicit ExpressionParser(std::string_view text) : text_(text) {}

  Result<Expression> parse() {
    if (text_.size() > Expression::kMaxText)
      return fail(Code::corrupt, fmt::format("an expression has {} characters, at most {} may be",
                                             text_.size(), Expression::kMaxText));
    RESHARD_TRY(level(0));
    skip();
    if (at_ < text_.size()) return wrong("an operator");
    out_.text_ = std::string(text_);
    return std::move(out_);
  }

 private:
  struct Operator {
    std::string_view sign;
    Kind kind;
  };
  static constexpr std::size_t kLevels = 6;
  /// Operators of one precedence level, 0 the lowest; longer signs first, lest "<=" be read as "<".
  static std::span<const Operator> operators(std::size_t level) {
    static constexpr std::array otherwise{Operator{"??", Kind::otherwise}};
    static constexpr std::array either{Operator{"||", Kind::either}};
    static constexpr std::array both{Operator{"&&", Kind::both}};
    static constexpr std::array comparisons{
        Operator{"==", Kind::equal}, Operator{"!=", Kind::unequal}, Operator{"<=", Kind::most},
        Operator{">=", Kind::least}, Operator{"<", Kind::less},     Operator{">", Kind::greater}};
    static constexpr std::array sums{Operator{"+", Kind::add}, Operator{"-", Kind::subtract}};
    static constexpr std::array products{Operator{"*", Kind::multiply}, Operator{"/", Kind::divide},
                                         Operator{"%", Kind::modulo}};
    switch (level) {
      case 0: return otherwise;
      case 1: return either;
      case 2: return both;
      case 3: return comparisons;
      case 4: return sums;
      default: return products;
    }
  }

  Result<> level(std::size_t of) {
    if (of == kLevels) return operand();
    RESHARD_TRY(level(of + 1));
    for (const Operator* found = next(of); found != nullptr; found = next(of)) {
      RESHARD_TRY(level(of + 1));
      out_.steps_.push_back({found->kind});
    }
    return {};
  }

  const Operator* next(std::size_t of) {
    skip();
    for (const Operator& known : operators(of))
      if (text_.substr(at_).starts_with(known.sign)) {
        at_ += known.sign.size();
        return &known;
      }
    return nullptr;
  }

  Result<> operand() {
    skip();
    if (at_ == text_.size()) return wrong("a number or a name");
    const char first = text_[at_];
    if (first == '(') return nested();
    const std::size_t begin = at_;
    if (is_digit(first)) {
      std::int64_t number = 0;
      const char* end = text_.data() + text_.size();
      const auto [stop, error] = std::from_chars(text_.data() + at_, end, number);
      if (error != std::errc()) return wrong("a number of 64 bits");
      at_ = static_cast<std::size_t>(stop - text_.data());
      out_.steps_.push_back({Kind::number, number});
      return {};
    }
    if (!is_letter(first)) return wrong("a number or a name");
    while (at_ < text_.size() &&
           (is_letter(text_[at_]) || is_digit(text_[at_]) || text_[at_] == '.'))
      ++at_;
    out_.steps_.push_back({Kind::name, 0, std::string(text_.substr(begin, at_ - begin))});
    return {};
  }

  Result<> nested() {
    if (++depth_ > Expression::kMaxDepth) return wrong("less nesting");
    ++at_;
    RESHARD_TRY(level(0));
    skip();
    if (at_ == text_.size() || text_[at_] != ')') return wrong("')'");
    ++at_;
    --depth_;
    return {};
  }

  static Expression empty() {
    Expression none;
    none.steps_.clear();
    return none;
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  tl::unexpected<Error> wrong(const char* wanted) const {
    return fail(Code::corrupt,
                fmt::format("expression '{}', column {}: must be {}", text_, at_ + 1, wanted));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
  Expression out_ = empty();
};

Expression::Expression(std::int64_t value) : text_(std::to_string(value)) {
  steps_.push_back({Kind::number, value});
}

Result<Expression> Expression::parse(std::string_view text) {
  return ExpressionParser(text).parse();
}

Result<> Expression::apply(Kind kind, Operand& left, const Operand& right) const {
  if (kind == Kind::otherwise) {
    if (left.absent != nullptr) left = right;
    return {};
  }
  if (left.absent != nullptr) return {};
  if (right.absent != nullptr) {
    left = right;
    return {};
  }
  std::int64_t a = left.number;
  const std::int64_t b = right.number;
  bool beyond = false;
  switch (kind) {
    case Kind::add: beyond = __builtin_add_overflow(a, b, &a); break;
    case Kind::subtract: beyond = __builtin_sub_overflow(a, b, &a); break;
    case Kind::multiply: beyond = __builtin_mul_overflow(a, b, &a); break;
    case Kind::divide:
    case Kind::modulo:
      // -1 alone makes a quotient that 64 bits cannot hold.
      if (b <= 0 || (kind == Kind::divide && a % b != 0))
        return fail(Code::invalid_argument,
                    fmt::format("'{}': {} cannot be divided by {}", text_, a, b));
      a = kind == Kind::divide ? a / b : a % b;
      break;
    case Kind::equal: a = a == b; break;
    case Kind::unequal: a = a != b; break;
    case Kind::less: a = a < b; break;
    case Kind::most: a = a <= b; break;
    case Kind::greater: a = a > b; break;
    case Kind::least: a = a >= b; break;
    case Kind::both: a = a != 0 && b != 0; break;
    case Kind::either: a = a != 0 || b != 0; break;
    default: break;
  }
  if (beyond)
    return fail(Code::invalid_argument, fmt::format("'{}': a number exceeds 64 bits", text_));
  left.number = a;
  return {};
}

Result<std::int64_t> Expression::value(const Lookup& names) const {
  std::vector<Operand> stack;
  for (const Step& step : steps_) {
    if (step.kind == Kind::number) {
      stack.push_back({step.number});
    } else if (step.kind == Kind::name) {
      const auto found = names(step.name);
      stack.push_back({found.value_or(0), found ? nullptr : &step.name});
    } else {
      const Operand right = stack.back();
      stack.pop_back();
      RESHARD_TRY(apply(step.kind, stack.back(), right));
    }
  }
  if (stack.back().absent != nullptr)
    return fail(Code::invalid_argument,
                fmt::format("'{}': {} has no value here", text_, *stack.back().absent));
  return stack.back().number;
}

}  // namespace reshard
