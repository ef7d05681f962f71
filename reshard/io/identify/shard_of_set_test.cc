// SPDX-License-Identifier: Apache-2.0
// Protects: one file of several is never taken for the model.
#include "reshard/io/identify/shard_of_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/open_model.h"

namespace reshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string one_tensor(const std::string& name) {
  return testing::safetensors_file(
      R"({")" + name + R"(":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
}

std::string error_of(const std::string& path) {
  const auto model = open_model(path);
  return model ? "" : model.error().message;
}

TEST(ShardOfSet, a_file_of_one_rank_names_its_folder_and_layout) {
  const testing::TempDir dir;
  for (const char* ranks :
       {R"({"rank": 0, "file": "rank-00000.safetensors"})",
        R"({"rank": 0, "file": "rank-00000.safetensors"}, {"rank": 1, "file": "x.safetensors"})"}) {
    const bool two = std::string(ranks).find("x.safetensors") != std::string::npos;
    const std::string file = dir.write("rank-00000.safetensors", one_tensor("w"));
    dir.write("reshard.json",
              R"({"format": "reshard-checkpoint", "version": 1, "layout": "vllm:tp=2",
              "world_size": )" +
                  std::string(two ? "2" : "1") + R"(, "ranks": [)" + ranks + "]}");
    EXPECT_THAT(error_of(file), AllOf(HasSubstr("of the layout 'vllm:tp=2'"),
                                      HasSubstr("name its folder, " + dir.path())));
    EXPECT_TRUE(open_model(file, {.exact = false})) << "to be looked at";
    EXPECT_EQ(error_of(dir.write("other.safetensors", one_tensor("w"))), "");
  }
}

TEST(ShardOfSet, a_file_that_an_index_lists_names_its_folder) {
  const testing::TempDir dir;
  const std::string a = dir.write("a.safetensors", one_tensor("a"));
  dir.write("b.safetensors", one_tensor("b"));
  dir.write("model.safetensors.index.json",
            R"({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})");
  EXPECT_THAT(error_of(a), AllOf(HasSubstr("is one of 2 files of a checkpoint; name its folder"),
                                 HasSubstr(dir.path())));
  EXPECT_EQ(error_of(dir.path()), "");
  dir.write("model.safetensors.index.json", R"({"weight_map": {"a": "a.safetensors"}})");
  EXPECT_EQ(error_of(a), "") << "all of a checkpoint";
}

TEST(ShardOfSet, a_name_that_counts_files_is_believed) {
  const testing::TempDir dir;
  const auto error = [&](const char* name) { return error_of(dir.write(name, one_tensor("w"))); };
  EXPECT_THAT(error("model-00001-of-00002.safetensors"),
              AllOf(HasSubstr("is one of 2 files of a checkpoint by its name"),
                    HasSubstr("model.safetensors.index.json is not beside it")));
  EXPECT_EQ(error("model-00001-of-00001.safetensors"), "");
  EXPECT_EQ(error("layer-of-3.safetensors"), "");
}

}  // namespace
}  // namespace reshard
