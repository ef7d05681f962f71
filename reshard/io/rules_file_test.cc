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
  EXPECT_THAT(set->axes, ElementsAre(RuleSet::MeshAxis{"tp", 4}, RuleSet::MeshAxis{"pp_2", 2}));
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

TEST(RulesFile, says_what_a_card_does) {
  const auto set = parse_rules(R"({
    "card": {"framework": "vllm", "release": "0.32.0", "architectures": ["AForCausalLM"],
             "model_types": ["a", "b"], "proof": "tp 1, 2, 4"},
    "axes": [{"name": "tp", "size": 1}], "keys": [{"name": "ep"}, {"name": "mtp", "default": 0}],
    "require": [{"that": "ep <= tp", "says": "ep exceeds tp"}], "dtype": "config",
    "rules": [
      {"match": "l.#.e.#.w", "each": 2, "name": "l.$1.w", "stack": -2, "dtype": "float32", "together": true,
       "dims": [1, 0], "pad": [{"dim": 1, "multiple": "64"}], "when": "ep > 1", "map": "plus_one",
       "take": [{"dim": 0, "begin": 1, "end": "h", "period": "2 * h", "turns": 2}], "merged": [0],
       "with": [{"match": "l.#.b", "shared": true}],
       "where": [{"axis": "tp", "number": 1, "of": "layers", "rest": "before_last"}]}
    ]})");
  ASSERT_TRUE(set.has_value()) << set.error().message;
  EXPECT_EQ(set->card->release, "0.32.0");
  EXPECT_THAT(set->card->model_types, ElementsAre("a", "b"));
  EXPECT_EQ(set->keys[0].otherwise, 1);
  EXPECT_EQ(set->keys[1].otherwise, 0);
  EXPECT_EQ(set->require[0].that.text(), "ep <= tp");
  EXPECT_TRUE(set->config_dtype);
  const Rule& rule = set->rules[0];
  EXPECT_EQ(rule.num_parts(), 2u);
  EXPECT_TRUE(rule.part(1).shared);
  EXPECT_EQ(rule.each, 2);
  EXPECT_EQ(rule.stack, -2);
  EXPECT_TRUE(rule.together);
  EXPECT_EQ(rule.map, ValueMap::plus_one);
  EXPECT_THAT(rule.dims, ElementsAre(1, 0));
  EXPECT_THAT(rule.merged, ElementsAre(0));
  EXPECT_EQ(rule.pad[0].multiple.text(), "64");
  EXPECT_EQ(rule.take[0].period->text(), "2 * h");
  EXPECT_EQ(rule.take[0].turns->text(), "2");
  EXPECT_EQ(rule.where[0].of->text(), "layers");
  EXPECT_EQ(rule.where[0].rest, StageRest::before_last);
  EXPECT_EQ(rule.when->text(), "ep > 1");
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

TEST(RulesFile, sizes_of_axes_may_follow_from_keys) {
  const auto set = parse_rules(
      R"({"axes": [{"name": "inner", "size": "tp / ep"}], "keys": [{"name": "tp"}, {"name": "ep"}],
          "rules": [{"match": "*", "cuts": [{"dim": 0, "axes": ["inner"]}]}]})");
  ASSERT_TRUE(set.has_value()) << set.error().message;
  EXPECT_EQ(set->axes[0].of->text(), "tp / ep");
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
        Wrong{R"({"name": "a", "size": 2}, {"name": "a", "size": 2, "mesh": "x"})",
              R"({"match": "*"})", "an axis of two meshes has its size in the first"},
        Wrong{R"({"name": "a", "mesh": "x"})", R"({"match": "*"})", "axis 1: size"},
        Wrong{kTp, R"({"match": "a", "interleave": 2})", "rule 1: interleave needs together"},
        Wrong{kTp, R"({"match": "a", "beside": "b.$1"})", "uses $1"},
        Wrong{R"({"name": "a", "size": 0})", R"({"match": "*"})",
              "size must be a whole number from 1"},
        Wrong{R"({"name": "a", "size": 1.5})", R"({"match": "*"})", "size must be a whole number"},
        Wrong{R"({"name": "a", "size": "tp /"})", R"({"match": "*"})", "axis 1: "},
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
        Wrong{kTp, R"({"match": "*", "cuts": [{"dim": 0, "axes": ["tp"], "granule": "2 *"}]})",
              "rule 1, cut 1: expression '2 *', column 4"},
        Wrong{kTp, R"({"match": "a", "with": [{"match": "b"}]})", "name is missing"},
        Wrong{kTp, R"({"match": "a\nb"})", "rule 1: match must be without control characters"},
        Wrong{kTp, R"({"match": "a", "when": "1 +\n 1"})",
              "when must be without control characters"},
        Wrong{kTp, R"({"match": "a", "name": "x", "together": true, "with": [{"match": "b", "cuts":
            [{"dim": 0, "axes": ["tp"]}]}]})",
              R"(rule 1: cuts of "b" must be the rule's, which cuts its parts together)"},
        Wrong{kTp, R"({"match": "a.#", "each": 1})", "name is missing"},
        Wrong{kTp, R"({"match": "a", "each": 1, "name": "x"})", "each"},
        Wrong{kTp, R"({"match": "a", "apart": true})",
              "name is missing, must name the tensor of "
              "several or of each index"},
        Wrong{kTp, R"({"match": "a.#", "apart": true, "each": 1, "name": "x"})",
              "apart must be of all parts or of none, and not with each"},
        Wrong{kTp, R"({"match": "a", "apart": true, "name": "x.$1", "with": [{"match": "b.#"}]})",
              "apart must be of all parts or of none"},
        Wrong{kTp, R"({"match": "a.#", "apart": true, "name": "x.$3"})", "uses $3"},
        Wrong{kTp, R"({"match": "a", "shape": []})", "shape is empty"},
        Wrong{kTp, R"({"match": "a", "shape": [2, -1]})", "must list numbers or expressions"},
        Wrong{kTp, R"({"match": "a", "shape": ["2 *"]})", "rule 1"},
        Wrong{kTp, R"({"match": "a", "shape": 2})", "shape"},
        Wrong{kTp, R"({"match": "a.#", "name": "x", "with": [{"match": "b"}]})",
              R"("b" leaves 0 wildcards and "a.#" leaves 1)"},
        Wrong{kTp, R"({"match": "a.#.#", "each": 2, "name": "x.$2"})", "uses $2"},
        Wrong{kTp, R"({"match": "a", "name": "x", "with": [{"match": "b", "name": "y"}]})",
              R"(rule 1, part 2: unknown key "name")"},
        Wrong{kTp, R"({"match": "*", "dims": [1, 2]})",
              "dims must list each dimension once, lacks 0"},
        Wrong{kTp, R"({"match": "*", "dims": [0, 0]})", "dims must list different dimensions"},
        Wrong{kTp, R"({"match": "*", "take": [{"dim": 0}]})", "end"},
        Wrong{kTp, R"({"match": "*", "take": [{"dim": 0, "end": 2}, {"dim": 0, "end": 3}]})",
              "dim 0 is taken twice"},
        Wrong{kTp, R"({"match": "#", "where": [{"axis": "tp", "number": 1, "per": 2, "of": 4}]})",
              "either per or of"},
        Wrong{kTp, R"({"match": "*", "where": [{"axis": "tp", "at": 0, "of": 4}]})",
              "of belongs to number"},
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
        Wrong{kTp, R"({"match": "*", "where": [{"axis": "tp", "at": -1048577}]})",
              "at must be a whole number from -1048576"},
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
