// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint in ranks are read as they were written, and hostile lists are
// refused.
#include "reshard/io/checkpoint/rank_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace reshard {
namespace {

using ::testing::HasSubstr;

/// The tensors in a file with this text.
Result<ModelSpec> read(const std::string& text) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("reshard-rank-index-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << text;
  auto tensors = read_rank_index_tensors(path.string());
  std::filesystem::remove(path);
  if (!tensors) {
    EXPECT_THAT(tensors.error().message, HasSubstr(path.string()));
  }
  return tensors;
}

TEST(RankIndex, says_again_what_was_written) {
  ModelSpec model;
  ASSERT_TRUE(model.add("a.weight", {3, 0, 7}, DType::bf16).has_value());
  ASSERT_TRUE(model.add("quote\" \\ line\n", {}, DType::f32).has_value());
  ASSERT_TRUE(model.add("sub", {4}, DType::f4).has_value());
  const RankIndex index{"megatron:tp=2", {"rank-00000.safetensors", "rank-00001.safetensors"}};
  const auto text = rank_index_text(index, model);
  const auto tensors = read(text);
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
  EXPECT_EQ(tensors->tensors(), model.tensors());
  EXPECT_EQ(parse_rank_index(text).value_or(RankIndex{}), index);
}

TEST(RankIndex, writes_the_shape_of_a_file) {
  ModelSpec model;
  ASSERT_TRUE(model.add("gate_up", {2, 3, 4, 2}, DType::bf16, {1U << 2}).has_value());
  const auto tensors = read(rank_index_text({"hf", {"rank-00000.safetensors"}}, model));
  ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
  EXPECT_EQ(tensors->tensors()[0].shape, (Dims{2, 3, 8}));
}

struct Wrong {
  const char* text;
  const char* says;
};

class WrongTensors : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongTensors, are_refused) {
  const auto tensors = read(GetParam().text);
  ASSERT_FALSE(tensors.has_value());
  EXPECT_THAT(tensors.error().message, HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Table, WrongTensors,
    ::testing::Values(
        Wrong{"{", "not JSON"}, Wrong{"[]", "tensors must be the list"},
        Wrong{R"({"tensors": []})", "tensors must be the list"},
        Wrong{R"({"tensors": [3]})", "entry 1 of tensors: name"},
        Wrong{R"({"tensors": [{"name": "", "dtype": "BF16", "shape": []}]})",
              "name must be a string"},
        Wrong{R"({"tensors": [{"name": "a", "dtype": "bf16", "shape": []}]})", "dtype must be"},
        Wrong{R"({"tensors": [{"name": "a", "dtype": "BF16", "shape": 3}]})",
              "shape must be a list"},
        Wrong{R"({"tensors": [{"name": "a", "dtype": "BF16", "shape": [1,1,1,1,1,1,1,1,1]}]})",
              "at most 8"},
        Wrong{R"({"tensors": [{"name": "a", "dtype": "BF16", "shape": [-1]}]})", "is -1"},
        Wrong{R"({"tensors": [{"name": "a", "dtype": "BF16", "shape": [1.5]}]})", "is 1.5"},
        Wrong{
            R"({"tensors": [{"name": "a", "dtype": "BF16", "shape": [1125899906842624, 1125899906842624]}]})",
            "representable"},
        Wrong{R"({"tensors": [{"name": "a", "dtype": "F4", "shape": [3]}]})", "whole"},
        Wrong{
            R"({"tensors": [{"name": "a", "dtype": "U8", "shape": [1]}, {"name": "a", "dtype": "U8", "shape": [1]}]})",
            "named twice"}));

}  // namespace
}  // namespace reshard
