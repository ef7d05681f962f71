// SPDX-License-Identifier: Apache-2.0
// Protects: patterns match as defined, and no pattern or name takes long.
#include "reshard/model/name_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/model/tensor.h"

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Groups = std::vector<std::string>;

/// The definition, tried in order: '#' all digits there are, '*' the shortest that lets the rest
/// match.
bool reference_match(std::string_view pattern, std::string_view name, Groups& groups) {
  if (pattern.empty()) return name.empty();
  const char c = pattern[0];
  const std::string_view rest = pattern.substr(1);
  if (c != '*' && c != '#')
    return !name.empty() && name[0] == c && reference_match(rest, name.substr(1), groups);
  const auto digits = std::min(name.find_first_not_of("0123456789"), name.size());
  if (c == '#' && digits == 0) return false;
  const std::size_t depth = groups.size();
  for (std::size_t n = c == '#' ? digits : 0; n <= (c == '#' ? digits : name.size()); ++n) {
    groups.resize(depth);
    groups.emplace_back(name.substr(0, n));
    if (reference_match(rest, name.substr(n), groups)) return true;
  }
  return false;
}

TEST(NamePattern, matches_whole_names) {
  EXPECT_THAT(*match_pattern("a.#.b.*", "a.12.b.c.d"), ElementsAre("12", "c.d"));
  EXPECT_FALSE(match_pattern("a.#.b", "a.x.b"));
  EXPECT_FALSE(match_pattern("a.#", "a."));
  EXPECT_THAT(*match_pattern("*.weight", "x.weight"), ElementsAre("x"));
  EXPECT_FALSE(match_pattern("*.weight", "x.weights"));
}

RC_GTEST_PROP(NamePattern, matches_what_the_definition_says, ()) {
  const auto text = [](std::string_view letters) {
    return rc::gen::container<std::string>(
        rc::gen::elementOf(std::vector<char>(letters.begin(), letters.end())));
  };
  const std::string pattern = *text("aab12*#"), name = *text("aab12");
  Groups groups;
  const bool matches = reference_match(pattern, name, groups);
  const auto found = match_pattern(pattern, name);
  RC_TAG(matches);
  RC_ASSERT(found.has_value() == matches);
  if (matches) RC_ASSERT(*found == groups);
}

TEST(NamePattern, the_steps_are_bounded_by_the_product_of_the_lengths) {
  const std::string letters(400, 'a'), digits(400, '1');
  const struct {
    std::string pattern, name;
  } hostile[] = {{"*a*a*a*b", letters},
                 {"*a*a*a*a*a*a*a*a*b", letters},
                 {"*" + std::string(200, 'a') + "b", letters},
                 {"*#*#*#*#b", digits},
                 {"*1#*1#*1#", digits + "x"},
                 {"*#1", digits}};
  for (const auto& [pattern, name] : hostile) {
    PatternMatcher matcher(2 * pattern.size() * name.size());
    const auto found = matcher.match(pattern, name);
    ASSERT_TRUE(found) << pattern << ": " << found.error().message;
    EXPECT_FALSE(*found) << pattern;
  }
}

TEST(NamePattern, all_patterns_together_are_bounded) {
  PatternMatcher matcher(1000);
  const std::string name(100, 'a');
  Result<std::optional<Groups>> last;
  int matched = 0;
  for (; matched < 1000 && (last = matcher.match("*b", name)); ++matched) {
  }
  ASSERT_FALSE(last);
  EXPECT_THAT(last.error().message, HasSubstr("takes too long"));
  EXPECT_GE(matched, 8);
}

TEST(NamePattern, a_name_that_is_too_long_is_refused_and_not_repeated_in_full) {
  ModelSpec model;
  EXPECT_TRUE(model.add(std::string(kMaxTensorName, 'a'), Dims{1}, DType::bf16));
  const auto added = model.add(std::string(kMaxTensorName + 1, 'a'), Dims{1}, DType::bf16);
  ASSERT_FALSE(added);
  EXPECT_THAT(added.error().message, HasSubstr("has 1025 bytes, at most 1024"));
  EXPECT_LT(added.error().message.size(), 200u);
}

}  // namespace
}  // namespace reshard
