// SPDX-License-Identifier: Apache-2.0
// What a rules file says is what the RuleSet says, and nothing that is wrong in one gets past the
// reader.
#include "reshard/io/rules_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RulesFile, says_everything_that_a_rule_can) {
  const auto set = parse_rules(R"({
    "axes": [{"name": "tp", "size": 4}, {"name": "pp_2", "size": 2}],
    "rules": [
      {"match": "layers.#.*.weight", "name": "l$1.$2",
       "cuts": [{"dim": -1, "axes": ["tp"], "rule": "spread", "combine": "flattened", "granule": 128}],
       "where": [{"axis": "pp_2", "number": 1, "per": 12}]},
      {"match": "head", "where": [{"axis": "pp_2", "at": 1}]},
      {"match": "*"}
    ]})");
  ASSERT_TRUE(set.has_value()) << set.error().message;
  EXPECT_THAT(set->axes, ElementsAre(Axis{"tp", 4}, Axis{"pp_2", 2}));
  ASSERT_EQ(set->rules.size(), 3u);
  const Rule& first = set->rules[0];
  EXPECT_EQ(first.match, "layers.#.*.weight");
  EXPECT_EQ(first.name, "l$1.$2");
  ASSERT_EQ(first.cuts.size(), 1u);
  EXPECT_EQ(first.cuts[0].dim, -1);
  EXPECT_THAT(first.cuts[0].axes, ElementsAre("tp"));
  EXPECT_EQ(first.cuts[0].rule, CutRule::spread);
  EXPECT_EQ(first.cuts[0].combine, DimCut::Combine::flattened);
  EXPECT_EQ(first.cuts[0].granule, 128);
  ASSERT_EQ(first.where.size(), 1u);
  EXPECT_EQ(first.where[0].axis, "pp_2");
  EXPECT_EQ(first.where[0].at, std::nullopt);
  EXPECT_EQ(first.where[0].number, 1);
  EXPECT_EQ(first.where[0].per, 12);
  EXPECT_EQ(set->rules[1].where[0].at, Index{1});
}

TEST(RulesFile, has_defaults) {
  const auto set = parse_rules(
      R"({"axes": [{"name": "d", "size": 3}],
          "rules": [{"match": "*", "cuts": [{"dim": 0, "axes": ["d"]}]}]})");
  ASSERT_TRUE(set.has_value()) << set.error().message;
  const Rule::Cut& cut = set->rules[0].cuts[0];
  EXPECT_EQ(cut.rule, CutRule::balanced);
  EXPECT_EQ(cut.combine, DimCut::Combine::sequential);
  EXPECT_EQ(cut.granule, 1);
  EXPECT_EQ(set->rules[0].name, "");
}

TEST(RulesFile, may_have_no_axes) {
  const auto set = parse_rules(R"({"rules": [{"match": "*"}]})");
  ASSERT_TRUE(set.has_value()) << set.error().message;
  EXPECT_TRUE(set->axes.empty());
}

struct Wrong {
  const char* axes;
  const char* rule;
  const char* says;
};

class WrongRules : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongRules, are_refused_with_the_place) {
  const Wrong& wrong = GetParam();
  const std::string text =
      std::string(R"({"axes": [)") + wrong.axes + R"(], "rules": [)" + wrong.rule + "]}";
  const auto set = parse_rules(text);
  ASSERT_FALSE(set.has_value()) << text;
  EXPECT_EQ(set.error().code, Code::corrupt);
  EXPECT_THAT(set.error().message, HasSubstr(wrong.says));
  EXPECT_EQ(set.error().message.find('\n'), std::string::npos);
}

constexpr const char* kTp = R"({"name": "tp", "size": 2})";

INSTANTIATE_TEST_SUITE_P(
    Table, WrongRules,
    ::testing::Values(
        Wrong{"3", R"({"match": "*"})", "axis 1 must be an object"},
        Wrong{R"({"size": 2})", R"({"match": "*"})", "axis 1: name"},
        Wrong{R"({"name": "t p", "size": 2})", R"({"match": "*"})", "letters, digits and _"},
        Wrong{R"({"name": "offset", "size": 2})", R"({"match": "*"})", "\"offset\" is taken"},
        Wrong{R"({"name": "a", "size": 2}, {"name": "a", "size": 2})", R"({"match": "*"})",
              "axis 2: name \"a\" is taken"},
        Wrong{R"({"name": "a", "size": 0})", R"({"match": "*"})",
              "size must be a whole number from 1"},
        Wrong{R"({"name": "a", "size": 1.5})", R"({"match": "*"})", "size must be a whole number"},
        Wrong{R"({"name": "a", "size": 2097152})", R"({"match": "*"})", "to 1048576"},
        Wrong{kTp, "", "rules is missing or empty"}, Wrong{kTp, "[]", "rule 1 must be an object"},
        Wrong{kTp, "{}", "rule 1: match must be a string"},
        Wrong{kTp, R"({"match": ""})", "rule 1: match must be a string"},
        Wrong{kTp, R"({"match": "*#*#*"})", "at most 4 are allowed"},
        Wrong{kTp, R"({"match": "*"}, {"match": "*", "nome": "x"})",
              "rule 2: unknown key \"nome\""},
        Wrong{kTp, R"({"match": "*", "name": 5})", "rule 1: name must be a string"},
        Wrong{kTp, R"({"match": "*", "name": "a$0"})", "name uses $0"},
        Wrong{kTp, R"({"match": "*", "name": "a$2"})", "name uses $2"},
        Wrong{kTp, R"({"match": "*", "cuts": {}})", "cuts must be a list"},
        Wrong{kTp, R"({"match": "*", "cuts": [{"axes": ["tp"]}]})", "dim must be a whole number"},
        Wrong{kTp, R"({"match": "*", "cuts": [{"dim": 0}]})", "axes is missing"},
        Wrong{kTp, R"({"match": "*", "cuts": [{"dim": 0, "axes": "tp"}]})", "axes must be a list"},
        Wrong{kTp, R"({"match": "*", "cuts": [{"dim": 0, "axes": [2]}]})",
              "axes must be a list of axis names"},
        Wrong{kTp, R"({"match": "*", "cuts": [{"dim": 0, "axes": ["ep"]}]})", "(tp)"},
        Wrong{kTp, R"({"match": "*", "cuts": [{"dim": 0, "axes": ["tp", "tp"]}]})",
              "is used twice"},
        Wrong{kTp, R"({"match": "*", "cuts": [{"dim": 0, "axes": ["tp"], "granule": 0}]})",
              "granule"},
        Wrong{kTp, R"({"match": "*", "cuts": [{"dim": 0, "axes": ["tp"], "combine": "both"}]})",
              "sequential, flattened"},
        Wrong{R"({"name": "a", "size": 2}, {"name": "b", "size": 2})",
              R"({"match": "*", "cuts": [{"dim": 0, "axes": ["a"]}, {"dim": 0, "axes": ["b"]}]})",
              "dim 0 is cut twice"},
        Wrong{kTp, R"({"match": "*", "where": [{"at": 0}]})", "axis must be a string"},
        Wrong{kTp, R"({"match": "*", "where": [{"axis": "tp", "at": 0, "number": 1}]})",
              "either at or number"},
        Wrong{kTp, R"({"match": "*", "where": [{"axis": "tp", "at": -1}]})",
              "at must be a whole number from 0"},
        Wrong{kTp, R"({"match": "*", "where": [{"axis": "tp", "at": 0, "per": 2}]})",
              "per belongs to number"},
        Wrong{kTp, R"({"match": "a", "where": [{"axis": "tp", "number": 1}]})", "needs a #"},
        Wrong{kTp, R"({"match": "#", "where": [{"axis": "tp", "number": 2}]})",
              "number must be a whole number from 1 to 1"},
        Wrong{kTp, R"({"match": "#", "where": [{"axis": "tp", "number": 1, "per": 0}]})",
              "per must be"},
        Wrong{
            kTp,
            R"({"match": "#", "cuts": [{"dim": 0, "axes": ["tp"]}], "where": [{"axis": "tp", "at": 0}]})",
            "where 1: axis \"tp\" is used twice"}));

TEST(RulesFile, bounds_what_it_reads) {
  std::string many = R"({"rules": [{"match": "*"})";
  for (std::size_t i = 0; i < kMaxRules; ++i) many += R"(, {"match": "*"})";
  const auto too_many = parse_rules(many + "]}");
  ASSERT_FALSE(too_many.has_value());
  EXPECT_THAT(too_many.error().message,
              AllOf(HasSubstr("4097 entries"), HasSubstr("at most 4096")));
  const auto too_long =
      parse_rules(R"({"rules": [{"match": ")" + std::string(kMaxRulePattern + 1, 'a') + R"("}]})");
  ASSERT_FALSE(too_long.has_value());
  EXPECT_THAT(too_long.error().message, HasSubstr("match must be a string of 1 to 512 characters"));
}

TEST(RulesFile, that_is_not_there_is_named) {
  const auto set = read_rules("/nowhere/cut.json");
  ASSERT_FALSE(set.has_value());
  EXPECT_EQ(set.error().code, Code::not_found);
  EXPECT_THAT(set.error().message, HasSubstr("/nowhere/cut.json"));
}

}  // namespace
}  // namespace reshard
