// SPDX-License-Identifier: Apache-2.0
// What a file of placements says is what the DTensorSet says, and nothing that is wrong in one gets
// past the reader.
#include "reshard/io/dtensor_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DTensorFile, says_everything_that_a_rule_can) {
  const auto set = parse_dtensor(R"json({
    "meshes": [{"name": "dense", "shape": [2, 2], "first": 4},
               {"name": "experts", "shape": [2], "ranks": [7, 3]}],
    "rules": [
      {"match": "layers.#.*", "name": "l$1.$2", "mesh": "experts", "placements": ["S(-1)"],
       "number": 1, "from": 2, "to": 5},
      {"match": "*", "mesh": "dense", "placements": ["_S(0, sf=2)", "R"]}
    ]})json");
  ASSERT_TRUE(set.has_value()) << set.error().message;
  ASSERT_EQ(set->meshes.size(), 2u);
  EXPECT_THAT(set->meshes[0].ranks, ElementsAre(Rank(4), Rank(5), Rank(6), Rank(7)));
  EXPECT_THAT(set->meshes[0].shape, ElementsAre(2, 2));
  EXPECT_THAT(set->meshes[1].ranks, ElementsAre(Rank(7), Rank(3)));
  ASSERT_EQ(set->rules.size(), 2u);
  const DTensorRule& first = set->rules[0];
  EXPECT_EQ(first.name, "l$1.$2");
  EXPECT_EQ(first.mesh, 1u);
  EXPECT_THAT(first.placements, ElementsAre(Placement{Placement::Kind::shard, -1, 1}));
  EXPECT_EQ(first.number, 1);
  EXPECT_EQ(first.from, 2);
  EXPECT_EQ(first.to, 5);
  EXPECT_EQ(set->rules[1].mesh, 0u);
  EXPECT_EQ(set->rules[1].number, 0);
  EXPECT_THAT(set->rules[1].placements,
              ElementsAre(Placement{Placement::Kind::strided_shard, 0, 2}, Placement{}));
}

TEST(DTensorFile, errors_say_where_and_what) {
  const std::string mesh = R"json({"meshes": [{"name": "m", "shape": [2]}], "rules": [)json";
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"{}", "meshes is missing or empty"},
      {R"json({"meshes": [{"name": "m", "shape": []}]})json", "mesh 1: shape is missing or empty"},
      {R"json({"meshes": [{"name": "m", "shape": [0]}]})json",
       "mesh 1: shape must be whole numbers"},
      {R"json({"meshes": [{"name": "m", "shape": [1048576, 1048576]}]})json",
       "more than 1048576 ranks"},
      {R"json({"meshes": [{"name": "m", "shape": [2], "ranks": [1]}]})json",
       "has 2 ranks but ranks lists 1"},
      {R"json({"meshes": [{"name": "m", "shape": [2], "ranks": [1, 2], "first": 0}]})json",
       "not both"},
      {R"json({"meshes": [{"name": "m", "shape": [1]}, {"name": "m", "shape": [1]}]})json",
       "mesh 2: name \"m\" is taken"},
      {mesh + "]}", "rules is missing or empty"},
      {mesh + R"json({"match": "*"}]})json",
       "rule 1: 0 placements, but mesh \"m\" has 1 dimensions"},
      {mesh + R"json({"match": "*", "mesh": "n", "placements": ["R"]}]})json",
       "mesh \"n\" is not among the file's meshes (m)"},
      {mesh + R"json({"match": "*", "placements": ["P"]}]})json", "rule 1: placement 'P' must be"},
      {mesh + R"json({"match": "*", "placements": [1]}]})json", "placements must be strings"},
      {mesh + R"json({"match": "*", "name": "$2", "placements": ["R"]}]})json", "name uses $2"},
      {mesh + R"json({"match": "a", "from": 1, "placements": ["R"]}]})json", "need a # in match"},
      {mesh + R"json({"match": "*****", "placements": ["R"]}]})json", "at most 4 are allowed"},
      {mesh + R"json({"match": "*", "placements": ["R"], "cut": 1}]})json", "unknown key \"cut\""},
  };
  for (const auto& [text, said] : cases) {
    const auto set = parse_dtensor(text);
    ASSERT_FALSE(set.has_value()) << text;
    EXPECT_EQ(set.error().code, Code::corrupt);
    EXPECT_THAT(set.error().message, HasSubstr(said)) << text;
  }
}

}  // namespace
}  // namespace reshard
