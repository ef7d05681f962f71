// SPDX-License-Identifier: Apache-2.0
// Protects: `complete` of rules files refuses models that lack a tensor, by its name, and no other
// ones.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "reshard/io/rules_file.h"
#include "reshard/model/config_values.h"
#include "reshard/model/families.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using Names = std::vector<std::string>;

/// The refusal of a model with these tensors; empty if nothing is missing.
std::string said_of(const std::string& complete, const Names& tensors,
                    const std::set<std::string>& may_lack = {}, ConfigValues config = {}) {
  const auto set = parse_rules(R"({"rules": [{"match": "*"}], "complete": )" + complete + "}");
  if (!set) return set.error().message;
  ModelSpec model;
  for (const std::string& name : tensors) EXPECT_TRUE(model.add(name, {2}, DType::bf16));
  FamilyInput input{std::make_shared<const ModelSpec>(std::move(model))};
  config.numbers.emplace("layers", 3);
  input.values = &config;
  input.may_lack = &may_lack;
  const auto layout = rules_layout(*parse_layout("rules:x.json"), input, *set);
  return layout ? "" : layout.error().message;
}

/// "PREFIX0SUFFIX" and so on, for `count` layers.
Names layers(int count, const Names& suffixes) {
  Names names;
  for (int i = 0; i < count; ++i)
    for (const std::string& suffix : suffixes) names.push_back(fmt::format("l.{}.{}", i, suffix));
  return names;
}

Names without(Names names, const std::set<std::string>& left_out) {
  std::erase_if(names, [&](const std::string& name) { return left_out.contains(name); });
  return names;
}

Names joined(Names a, const Names& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(RulesComplete, asks_for_all_or_none_at_the_same_numbers) {
  const std::string complete = R"([{"front": "l.#.", "all": ["q", "k", "o.w"]}])";
  EXPECT_EQ(said_of(complete, layers(12, {"q", "k", "o.w"})), "");
  EXPECT_EQ(said_of(complete, {"other"}), "");
  EXPECT_EQ(said_of(complete, joined(layers(2, {"q", "k", "o.w"}), {"l.7.norm"})), "");
  EXPECT_EQ(said_of(complete, without(layers(12, {"q", "k", "o.w"}), {"l.10.o.w"})),
            "rules: tensor 'l.10.o.w' is missing from the model");
  EXPECT_EQ(said_of(complete, {"l.4.k", "l.2.o.w"}),
            "rules: tensor 'l.2.q' is missing from the model, and 3 more are");
  EXPECT_EQ(said_of(R"([{"all": ["mtp.a", "mtp.b"]}])", {"mtp.b"}),
            "rules: tensor 'mtp.a' is missing from the model");
}

TEST(RulesComplete, asks_for_as_many_layers_as_the_config_has) {
  const std::string complete = R"([{"front": "l.#.", "all": ["q", "k"], "of": "layers"}])";
  EXPECT_EQ(said_of(complete, layers(3, {"q", "k"})), "");
  EXPECT_EQ(said_of(complete, joined(layers(3, {"q", "k"}), {"l.3.q", "l.9.k"})), "")
      << "layers behind those that the config counts are not looked at";
  EXPECT_EQ(said_of(complete, layers(2, {"q", "k"})),
            "rules: tensor 'l.2.q' is missing from the model, and 1 more is");
  EXPECT_EQ(said_of(complete, without(layers(3, {"q", "k"}), {"l.1.q", "l.1.k"})),
            "rules: tensor 'l.1.q' is missing from the model, and 1 more is");
  EXPECT_EQ(said_of(complete, {"embed"}),
            "rules: tensor 'l.0.q' is missing from the model, and 5 more are");
}

TEST(RulesComplete, asks_for_all_experts_of_the_layers_that_have_some) {
  const std::string complete = R"([{"front": "l.#.e.#.", "all": ["up", "down"], "of": 2},
                                   {"front": "l.#.", "all": ["gate", "e.0.up"]}])";
  const Names experts = {"gate", "e.0.up", "e.0.down", "e.1.up", "e.1.down"};
  EXPECT_EQ(said_of(complete, joined(layers(3, experts), {"l.3.dense"})), "");
  EXPECT_EQ(said_of(complete, without(layers(3, experts), {"l.2.e.1.up", "l.2.e.1.down"})),
            "rules: tensor 'l.2.e.1.up' is missing from the model, and 1 more is");
  EXPECT_EQ(said_of(complete, joined(layers(3, experts), {"l.3.gate"})),
            "rules: tensor 'l.3.e.0.up' is missing from the model, and 3 more are")
      << "all experts of a layer that has a gate";
  EXPECT_EQ(said_of(complete, without(layers(3, experts), {"l.1.e.0.up"})),
            "rules: tensor 'l.1.e.0.up' is missing from the model")
      << "a tensor of two entries counts once";
}

TEST(RulesComplete, asks_for_single_names_if_the_config_says_so) {
  const std::string complete =
      R"([{"all": ["embed", "norm"], "must": 1}, {"all": ["head"], "must": "(tied ?? 0) == 0"}])";
  EXPECT_EQ(said_of(complete, {"embed", "norm", "head"}), "");
  EXPECT_EQ(said_of(complete, {"embed", "norm"}), "rules: tensor 'head' is missing from the model");
  ConfigValues tied;
  tied.numbers = {{"tied", 1}};
  EXPECT_EQ(said_of(complete, {"embed", "norm"}, {}, tied), "");
  EXPECT_EQ(said_of(complete, {"w"}, {}, tied),
            "rules: tensor 'embed' is missing from the model, and 1 more is");
}

TEST(RulesComplete, is_content_with_one_of_several) {
  const std::string complete = R"([{"front": "l.#.", "any": ["dense", "moe"], "of": "layers"},
                                   {"any": ["v.a", "a"], "must": 1}])";
  EXPECT_EQ(said_of(complete, {"l.0.dense", "l.1.moe", "l.2.moe", "a"}), "");
  EXPECT_EQ(said_of(complete, {"l.0.dense", "l.2.moe", "v.a"}),
            "rules: tensor 'l.1.dense' or 'l.1.moe' is missing from the model");
  EXPECT_EQ(said_of(complete, {"l.0.dense", "l.1.moe", "l.2.moe"}),
            "rules: tensor 'v.a' or 'a' is missing from the model");
}

TEST(RulesComplete, does_not_ask_for_what_the_user_leaves_out) {
  const std::string complete = R"([{"front": "l.#.", "all": ["q", "k"], "of": "layers"},
                                   {"any": ["v.a", "a"], "must": 1}])";
  const Names lacking = without(joined(layers(3, {"q", "k"}), {"a"}), {"l.1.q", "l.2.k"});
  EXPECT_EQ(said_of(complete, lacking, {"l.1.*", "l.2.k"}), "");
  EXPECT_EQ(said_of(complete, lacking, {"l.1.*"}),
            "rules: tensor 'l.2.k' is missing from the model");
  EXPECT_EQ(said_of(complete, layers(3, {"q", "k"}), {"v.*"}), "");
}

TEST(RulesComplete, reads_numbers_as_names_have_them) {
  const std::string complete =
      R"([{"all": ["l.#.w1", "l.#.w2"], "of": 2}, {"all": ["x1.#", "x2.#"]}])";
  EXPECT_EQ(said_of(complete, {"l.0.w1", "l.0.w2", "l.1.w1", "l.1.w2", "l.1.w3"}), "");
  EXPECT_EQ(said_of(complete, {"l.0.w1", "l.0.w2", "l.01.w1", "l.1.w2"}),
            "rules: tensor 'l.1.w1' is missing from the model")
      << "another name, which counts nothing";
  EXPECT_EQ(said_of(complete, {"l.0.w1", "l.0.w2", "l.1.w1", "l.1.w2", "x1.99999999999999999999"}),
            "")
      << "a number that no layer has";
}

TEST(RulesComplete, with_numbers_beyond_all_bounds_is_refused) {
  const auto of = [](const char* number) {
    return said_of(fmt::format(R"([{{"all": ["l.#.a", "l.#.b"], "of": "{}"}}])", number),
                   {"l.0.a"});
  };
  EXPECT_THAT(of("9000000000 * 9000000000"), HasSubstr("64 bits"));
  EXPECT_THAT(of("0 - 1"), HasSubstr("-1 tensors 'l.#.a' are asked for"));
  EXPECT_THAT(of("1048576"), HasSubstr("at most 1048575 can be"));
  EXPECT_THAT(of("1048575"), HasSubstr("tensor 'l.0.b' is missing from the model"));
  EXPECT_THAT(of("no_such_key"), HasSubstr("no_such_key"));
  EXPECT_EQ(of("0"), "");
  EXPECT_THAT(said_of(R"([{"all": ["l.#.e.#.a", "l.#.e.#.b"], "of": 1000000}])",
                      {"l.0.e.0.a", "l.1.e.0.a", "l.2.e.0.a"}),
              HasSubstr("of which 3000000 are asked for"));
}

TEST(RulesComplete, with_very_many_patterns_of_one_form_is_refused) {
  Names patterns, tensors;
  for (int i = 0; i < 4000; ++i) patterns.push_back(fmt::format("\"l.{}.#\"", i));
  for (int i = 0; i < 20000; ++i) tensors.push_back(fmt::format("l.{}.0", i));
  EXPECT_THAT(said_of(fmt::format(R"([{{"all": [{}]}}])", fmt::join(patterns, ",")), tensors),
              HasSubstr("too many patterns that differ in digits"));
}

struct Wrong {
  const char* entry;
  const char* says;
};

class RulesCompleteErrors : public ::testing::TestWithParam<Wrong> {};

TEST_P(RulesCompleteErrors, name_the_entry) {
  const auto set = parse_rules(
      fmt::format(R"({{"rules": [{{"match": "*"}}], "complete": [{{"all": ["a", "b"]}}, {}]}})",
                  GetParam().entry));
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::corrupt);
  EXPECT_THAT(set.error().message, HasSubstr("complete 2: "));
  EXPECT_THAT(set.error().message, HasSubstr(GetParam().says));
}

constexpr const char* kForm = "must have either all or any; of with #, or must without";
INSTANTIATE_TEST_SUITE_P(
    All, RulesCompleteErrors,
    ::testing::Values(Wrong{R"({"all": []})", "all is empty"},
                      Wrong{R"({"must": 1})", "all is empty"},
                      Wrong{R"({"all": ["a", 3]})", "must list names, one is 3"},
                      Wrong{R"({"all": ["a", "b\n"]})", "must list names"},
                      Wrong{R"({"front": 3, "all": ["a"]})", "front"},
                      Wrong{R"({"all": ["a"], "any": ["b"], "must": 1})", kForm},
                      Wrong{R"({"all": ["a"]})", kForm}, Wrong{R"({"all": ["l.#.a"]})", kForm},
                      Wrong{R"({"any": ["a", "b"]})", kForm},
                      Wrong{R"({"any": ["l.#.a", "l.#.b"]})", kForm},
                      Wrong{R"({"all": ["a", "b"], "of": 2})", kForm},
                      Wrong{R"({"all": ["l.#.a"], "must": 1})", kForm},
                      Wrong{R"({"all": ["l.#.a", "b"]})", "must have as many # as \"l.#.a\""},
                      Wrong{R"({"all": ["l.*", "b"]})", "and no *"},
                      Wrong{R"({"all": ["#.#.#.#", "#.#.#.#"]})", "at most 3"},
                      Wrong{R"({"all": ["l#2", "l#3"]})", "none beside a digit"},
                      Wrong{R"({"all": ["l##", "k##"]})", "none beside a digit"},
                      Wrong{R"({"all": ["l.#.a"], "of": "1 +"})", "1 +"},
                      Wrong{R"({"all": ["l.#.a"], "of": -1})", "of"},
                      Wrong{R"({"all": ["a"], "must": true})", "must"},
                      Wrong{R"({"all": ["a"], "mus": 1})", "mus"}));

}  // namespace
}  // namespace reshard
