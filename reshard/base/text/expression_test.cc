// SPDX-License-Identifier: Apache-2.0
// Protects: an expression is read as it is written, and what it cannot say is an error with its
// column.
#include "reshard/base/text/expression.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace reshard {
namespace {

using ::testing::HasSubstr;

const std::map<std::string, std::int64_t, std::less<>> kNames = {
    {"heads", 8}, {"head_dim", 16}, {"text_config.hidden_size", 128}, {"ep", 1}, {"zero", 0}};

Result<std::int64_t> value(std::string_view text) {
  const auto expression = Expression::parse(text);
  if (!expression) return tl::unexpected(expression.error());
  return expression->value([](std::string_view name) -> std::optional<std::int64_t> {
    const auto found = kNames.find(name);
    return found == kNames.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string error_of(std::string_view text) {
  const auto found = value(text);
  return found ? "no error" : found.error().message;
}

TEST(Expression, has_the_usual_precedence) {
  EXPECT_EQ(*value("1 + 2 * 3"), 7);
  EXPECT_EQ(*value("(1 + 2) * 3"), 9);
  EXPECT_EQ(*value("20 - 5 - 3"), 12);
  EXPECT_EQ(*value("64 / 4 / 2 % 5"), 3);
  EXPECT_EQ(*value("1 + 1 == 2 && 3 < 2 || 2 <= 2"), 1);
  EXPECT_EQ(*value("heads*head_dim"), 128);
  EXPECT_EQ(*value("text_config.hidden_size / heads"), 16);
}

TEST(Expression, takes_another_value_where_a_name_has_none) {
  EXPECT_EQ(*value("kv_heads ?? heads"), 8);
  EXPECT_EQ(*value("heads ?? 3"), 8);
  EXPECT_EQ(*value("(kv_heads ?? heads) * (width ?? 1 + 1)"), 16);
  EXPECT_EQ(*value("kv_heads * 2 ?? none + 1 ?? 5"), 5);
  EXPECT_EQ(*value("zero ?? 3"), 0);
  EXPECT_THAT(error_of("kv_heads * 2"), HasSubstr("'kv_heads * 2': kv_heads has no value here"));
}

TEST(Expression, refuses_what_it_cannot_say) {
  EXPECT_THAT(error_of("heads / 3"), HasSubstr("8 cannot be divided by 3"));
  EXPECT_THAT(error_of("heads / zero"), HasSubstr("8 cannot be divided by 0"));
  EXPECT_THAT(error_of("heads % (0 - 1)"), HasSubstr("cannot be divided by -1"));
  EXPECT_THAT(error_of("9223372036854775807 + 1"), HasSubstr("exceeds 64 bits"));
  EXPECT_THAT(error_of("9223372036854775808"), HasSubstr("column 1: must be a number of 64 bits"));
  EXPECT_THAT(error_of("heads heads"), HasSubstr("column 7: must be an operator"));
  EXPECT_THAT(error_of("heads +"), HasSubstr("column 8: must be a number or a name"));
  EXPECT_THAT(error_of("(heads"), HasSubstr("column 7: must be ')'"));
  EXPECT_THAT(error_of(""), HasSubstr("column 1: must be a number or a name"));
  EXPECT_THAT(error_of("-1"), HasSubstr("column 1: must be a number or a name"));
  EXPECT_THAT(error_of(std::string(300, '1')), HasSubstr("300 characters"));
  EXPECT_THAT(error_of(fmt::format("{:(>20}1{:)>20}", "", "")), HasSubstr("must be less nesting"));
}

RC_GTEST_PROP(Expression, of_any_text_is_an_error_or_a_value, (const std::string& text)) {
  (void)value(text);
}

RC_GTEST_PROP(Expression, computes_as_integers_do, ()) {
  const auto a = *rc::gen::inRange<std::int64_t>(0, 1000);
  const auto b = *rc::gen::inRange<std::int64_t>(1, 1000);
  const auto c = *rc::gen::inRange<std::int64_t>(1, 1000);
  const auto text = std::to_string(a) + "+" + std::to_string(b) + " *" + std::to_string(c) + "-" +
                    std::to_string(b * c) + " / " + std::to_string(b);
  RC_ASSERT(*value(text) == a + b * c - c);
}

}  // namespace
}  // namespace reshard
