// SPDX-License-Identifier: Apache-2.0
// What a file of experts says is what the tables say, and nothing else gets past the reader.
#include "reshard/io/expert_map_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExpertMapFile, one_list_or_one_per_layer) {
  EXPECT_THAT(*parse_expert_map("[2, 0, 1, 2]"), ElementsAre(ElementsAre(2, 0, 1, 2)));
  EXPECT_THAT(*parse_expert_map("[[0, 1], [1, 0]]"),
              ElementsAre(ElementsAre(0, 1), ElementsAre(1, 0)));
}

TEST(ExpertMapFile, errors_say_where_and_what) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{}", "must be a list of experts"},
      {"[]", "must be a list of experts"},
      {"[0, -1]", "list 0: entry 1 must be the number of an expert, is -1"},
      {"[0, \"x\"]", "list 0: entry 1"},
      {"[[0], [1, 0.5]]", "list 1: entry 1"},
      {"[[0], 1]", "entry 1 must be a list like those before it, is 1"},
      {"[[0], []]", "list 1 is empty"},
      {"[0, 1048576]", "list 0: entry 1"},
      {"[0", "byte 2"}};
  for (const auto& [text, what] : cases) {
    const auto tables = parse_expert_map(text);
    ASSERT_FALSE(tables.has_value()) << text;
    EXPECT_THAT(tables.error().message, HasSubstr(what)) << text;
  }
  EXPECT_THAT(read_expert_map("/no/such/file").error().message, HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace reshard
