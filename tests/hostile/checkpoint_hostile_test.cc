// SPDX-License-Identifier: Apache-2.0
// Protects: an index and its files are used only if they agree, and never outside their folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/checkpoint/index.h"
#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;
using testing::safetensors_file;
using testing::TempDir;

std::string tensors_file(const std::vector<std::string>& names) {
  std::string header;
  for (std::size_t i = 0; i < names.size(); ++i)
    header += std::string(i == 0 ? "{" : ",") + "\"" + names[i] +
              "\":{\"dtype\":\"U8\",\"shape\":[1]," + "\"data_offsets\":[" + std::to_string(i) +
              "," + std::to_string(i + 1) + "]}";
  return safetensors_file(header + "}", names.size());
}

/// A folder with file "x" of tensors a, b and file "y" of tensor c, and this index.
struct IndexCase {
  const char* name;
  std::string index;
  const char* words;
  Code code = Code::corrupt;
};

std::ostream& operator<<(std::ostream& out, const IndexCase& c) { return out << c.name; }

void expect_refused(const IndexCase& c, std::string_view index_name) {
  const TempDir dir;
  dir.write("x", tensors_file({"a", "b"}));
  dir.write("y", tensors_file({"c"}));
  dir.write("b_too", tensors_file({"b"}));
  dir.write("broken", "12345678");
  dir.write(index_name, c.index);
  const auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_FALSE(checkpoint);
  EXPECT_EQ(checkpoint.error().code, c.code) << checkpoint.error().message;
  EXPECT_THAT(checkpoint.error().message, HasSubstr(c.words));
  EXPECT_THAT(checkpoint.error().message, HasSubstr(dir.path()));
  EXPECT_EQ(checkpoint.error().message.find('\n'), std::string::npos);
}

std::vector<IndexCase> hf_cases() {
  const auto map = [](const std::string& entries) { return "{\"weight_map\":{" + entries + "}}"; };
  const auto elsewhere = [&](const std::string& file) { return map("\"a\":\"" + file + "\""); };
  const std::string x = R"("a":"x","b":"x")";
  return {
      {"not_json", "{", "index.json: not JSON"},
      {"a_list", "[]", "must be an object, is a list"},
      {"no_weight_map", "{}",
       "weight_map must be an object of tensor name -> file name, is missing"},
      {"weight_map_list", R"({"weight_map":[]})", "is a list"},
      {"weight_map_empty", map(""), "weight_map is empty"},
      {"file_is_a_number", map("\"a\":1"), "weight_map \"a\" must be a file name, is 1"},
      {"tensor_twice", map(R"("a":"x","a":"y")"), "\"a\" appears twice"},
      {"weight_map_twice", R"({"weight_map":{"a":"x"},"weight_map":{"a":"y"}})", "appears twice"},
      {"file_missing", map(x + R"(,"c":"gone")"), "lists file \"gone\", which does not exist",
       Code::not_found},
      {"file_broken", map(x + R"(,"c":"broken")"), "broken: header length"},
      {"tensor_not_in_its_file", map(x + R"(,"c":"y","d":"y")"),
       "\"d\" is listed for \"y\" but is not in it"},
      {"tensor_in_another_file", map(R"("a":"x","b":"y","c":"y")"),
       "\"b\" is listed for \"y\" but is in"},
      {"tensor_not_listed", map(R"("a":"x","c":"y")"), "tensor \"b\" is in"},
      {"tensor_in_two_files", map(R"("a":"x","b":"b_too")"), "tensor \"b\" is in two files"},
      {"parent", elsewhere("../model.safetensors"), "plain name in the same folder"},
      {"dotdot", elsewhere(".."), "plain name in the same folder"},
      {"dot", elsewhere("."), "plain name in the same folder"},
      {"absolute", elsewhere("/etc/passwd"), "\"/etc/passwd\" must be a plain name"},
      {"below", elsewhere("sub/x"), "plain name"},
      {"backslash", elsewhere("..\\\\x"), "plain name"},
      {"nothing", elsewhere(""), "plain name"},
      {"nul", elsewhere("x\\u0000y"), "plain name"},
      {"newline", elsewhere("x\\n"), "plain name"},
      {"too_long", elsewhere(std::string(256, 'f')), "plain name"},
  };
}

std::vector<IndexCase> rank_cases() {
  const auto index = [](const std::string& size, const std::string& ranks) {
    return R"({"format":"reshard-checkpoint","version":1,"layout":"hf","world_size":)" + size +
           ",\"ranks\":" + ranks + "}";
  };
  const std::string zero = R"({"rank":0,"file":"x"})";
  return {
      {"not_utf8", "{\"format\":\"\xff\"}", "reshard.json: not UTF-8 at byte 11"},
      {"another_format", R"({"format":"pickle"})",
       "format must be \"reshard-checkpoint\", is \"pickle\""},
      {"no_version", R"({"format":"reshard-checkpoint"})",
       "version must be an integer, is missing"},
      {"another_version", R"({"format":"reshard-checkpoint","version":2})",
       "version 2 is not known", Code::unsupported},
      {"no_layout", R"({"format":"reshard-checkpoint","version":1})", "layout must be a string"},
      {"world_of_none", index("0", "[]"), "world_size must be an integer from 1 to 1048576, is 0"},
      {"world_negative", index("-1", "[]"), "is -1"},
      {"world_huge", index("9223372036854775807", "[]"), "is 9223372036854775807"},
      {"world_text", index("\"2\"", "[]"), "is \"2\""},
      {"ranks_object", index("1", "{}"), "ranks must be a list"},
      {"rank_missing", index("2", "[" + zero + "]"), "rank 1 of world_size 2 is missing"},
      {"rank_twice", index("2", "[" + zero + "," + zero + "]"), "rank 0 appears twice"},
      {"rank_outside", index("1", R"([{"rank":1,"file":"x"}])"), "an integer from 0 to 0, is 1"},
      {"rank_negative", index("1", R"([{"rank":-1,"file":"x"}])"), "is -1"},
      {"rank_entry_number", index("1", "[0]"), "rank in an entry of ranks"},
      {"rank_without_file", index("1", R"([{"rank":0}])"),
       "file of rank 0 must be a file name, is missing"},
      {"rank_file_outside", index("1", R"([{"rank":0,"file":"../x"}])"), "plain name"},
      {"rank_file_missing", index("1", R"([{"rank":0,"file":"gone"}])"), "does not exist",
       Code::not_found},
      {"rank_file_broken", index("1", R"([{"rank":0,"file":"broken"}])"), "broken: header length"},
  };
}

class HostileHfIndex : public ::testing::TestWithParam<IndexCase> {};
TEST_P(HostileHfIndex, is_refused_with_its_own_words) { expect_refused(GetParam(), kHfIndexFile); }

class HostileRankIndex : public ::testing::TestWithParam<IndexCase> {};
TEST_P(HostileRankIndex, is_refused_with_its_own_words) {
  expect_refused(GetParam(), kRankIndexFile);
}

const auto kName = [](const auto& info) { return std::string(info.param.name); };
INSTANTIATE_TEST_SUITE_P(Hf, HostileHfIndex, ::testing::ValuesIn(hf_cases()), kName);
INSTANTIATE_TEST_SUITE_P(Ranks, HostileRankIndex, ::testing::ValuesIn(rank_cases()), kName);

void expect_no_checkpoint(const std::string& path, Code code, const char* words) {
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_FALSE(checkpoint) << path;
  EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().message;
  EXPECT_THAT(checkpoint.error().message, HasSubstr(words));
}

TEST(HostileCheckpoint, a_folder_of_no_kind_says_what_was_looked_for) {
  const TempDir dir;
  expect_no_checkpoint(
      dir.path(), Code::not_found,
      "looked for reshard.json, model.safetensors.index.json, model.safetensors and .metadata");
  dir.write("pytorch_model.bin", "");
  expect_no_checkpoint(dir.path(), Code::not_found, "\"pytorch_model.bin\", but only safetensors");
  dir.write("model-00001-of-00002.safetensors", "");
  expect_no_checkpoint(dir.path(), Code::not_found, "no index that lists it");
}

TEST(HostileCheckpoint, a_folder_of_two_kinds_must_be_told_apart) {
  const TempDir dir;
  dir.write(kHfFile, tensors_file({"a"}));
  dir.write("x", tensors_file({"a"}));
  dir.write(kHfIndexFile, R"({"weight_map":{"a":"x"}})");
  expect_no_checkpoint(dir.path(), Code::invalid_argument, "holds two checkpoints; name one of");
  EXPECT_TRUE(Checkpoint::open(dir / kHfFile));
  EXPECT_TRUE(Checkpoint::open(dir / kHfIndexFile));
}

TEST(HostileCheckpoint, paths_that_are_no_checkpoint_are_named) {
  const TempDir dir;
  expect_no_checkpoint(dir / "none", Code::not_found,
                       "none: cannot open the file: it does not exist");
  expect_no_checkpoint(dir.write("notes.txt", "hello, world"), Code::corrupt,
                       "notes.txt: header length");
  std::filesystem::create_directory(dir / "model.safetensors");
  expect_no_checkpoint(dir.path(), Code::invalid_argument,
                       "model.safetensors: is a folder, must be a file");
}

}  // namespace
}  // namespace reshard
