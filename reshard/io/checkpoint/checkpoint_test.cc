// SPDX-License-Identifier: Apache-2.0
// Protects: each kind of checkpoint folder opens with exactly the tensors it has, and its index
// text reads back.
#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/checkpoint/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reshard/io/checkpoint/safetensors_writer.h"
#include "reshard/io/files/disk.h"
#include "reshard/io/files/temp_dir_testutil.h"

namespace reshard {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;
using testing::TempDir;

/// A file of one-dimensional u8 tensors, name -> content.
void write_tensors(const std::string& path, const std::map<std::string, std::string>& tensors) {
  std::vector<TensorBytes> list;
  for (const auto& [name, content] : tensors)
    list.push_back({{name, DType::u8, {static_cast<Index>(content.size())}}, bytes_of(content)});
  const auto written = write_safetensors(path, list);
  ASSERT_TRUE(written) << written.error().message;
}

std::string content(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  const auto data = checkpoint.data(tensor);
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

/// "name=content ..." of a list.
std::string show(const Checkpoint& checkpoint, const std::vector<CheckpointTensor>& tensors) {
  std::string text;
  for (const auto& tensor : tensors) text += tensor.name + "=" + content(checkpoint, tensor) + " ";
  return text;
}

TEST(Checkpoint, one_hf_file_opens_as_a_folder_and_as_itself) {
  const TempDir dir;
  write_tensors(dir / "model.safetensors", {{"b", "22"}, {"a", "1"}});
  for (const auto& path : {dir.path(), dir / "model.safetensors"}) {
    const auto checkpoint = *Checkpoint::open(path);
    EXPECT_EQ(checkpoint.kind(), Checkpoint::Kind::hf);
    EXPECT_EQ(checkpoint.world_size(), 1);
    EXPECT_EQ(checkpoint.layout(), "");
    EXPECT_EQ(checkpoint.folder(), dir.path());
    EXPECT_EQ(show(checkpoint, checkpoint.tensors()), "a=1 b=22 ");
    EXPECT_EQ(checkpoint.config_path(), std::nullopt);
  }
  dir.write("config.json", "{}");
  EXPECT_EQ(Checkpoint::open(dir.path())->config_path(), dir / "config.json");
}

TEST(Checkpoint, hf_shards_are_one_list_sorted_by_name) {
  const TempDir dir;
  write_tensors(dir / hf_file_name(0, 2), {{"b", "22"}, {"d", "4"}});
  write_tensors(dir / hf_file_name(1, 2), {{"a", "1"}, {"c", "333"}});
  const WeightMap map = {{"a", hf_file_name(1, 2)},
                         {"b", hf_file_name(0, 2)},
                         {"c", hf_file_name(1, 2)},
                         {"d", hf_file_name(0, 2)}};
  dir.write(kHfIndexFile, hf_index_text(map, 7));
  for (const auto& path : {dir.path(), dir / kHfIndexFile}) {
    const auto checkpoint = *Checkpoint::open(path);
    EXPECT_EQ(checkpoint.files().size(), 2u);
    EXPECT_EQ(show(checkpoint, checkpoint.tensors()), "a=1 b=22 c=333 d=4 ");
    const auto* c = find_tensor(checkpoint.tensors(), "c");
    ASSERT_NE(c, nullptr);
    checkpoint.drop(*c);
    EXPECT_EQ(content(checkpoint, *c), "333");
    EXPECT_EQ(find_tensor(checkpoint.tensors(), "cc"), nullptr);
  }
}

TEST(Checkpoint, ranks_have_their_own_lists_and_may_share_files) {
  const TempDir dir;
  write_tensors(dir / rank_file_name(Rank(0)), {{"w", "left"}});
  write_tensors(dir / rank_file_name(Rank(1)), {{"w", "right"}, {"n", "x"}});
  dir.write(kRankIndexFile, rank_index_text({"megatron:tp=2,dp=2",
                                             {rank_file_name(Rank(0)), rank_file_name(Rank(1)),
                                              rank_file_name(Rank(0)), rank_file_name(Rank(1))}}));
  const auto checkpoint = *Checkpoint::open(dir.path());
  EXPECT_EQ(checkpoint.kind(), Checkpoint::Kind::ranks);
  EXPECT_EQ(checkpoint.layout(), "megatron:tp=2,dp=2");
  EXPECT_EQ(checkpoint.world_size(), 4);
  EXPECT_EQ(checkpoint.files().size(), 2u);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(show(checkpoint, checkpoint.tensors(Rank(rank))),
              rank % 2 == 0 ? "w=left " : "n=x w=right ");
}

TEST(Checkpoint, a_moved_checkpoint_keeps_its_data) {
  const TempDir dir;
  write_tensors(dir / "model.safetensors", {{"a", "1"}});
  auto first = *Checkpoint::open(dir.path());
  const Checkpoint second = std::move(first);
  EXPECT_EQ(show(second, second.tensors()), "a=1 ");
}

TEST(CheckpointIndex, texts_read_back) {
  const WeightMap map = {{"model.embed\"\n", "a.safetensors"}, {"z", "b.safetensors"}};
  EXPECT_EQ(*parse_hf_index(hf_index_text(map, 5)), map);
  EXPECT_THAT(hf_index_text(map, 5), HasSubstr("\"total_size\": 5"));
  const RankIndex index{"vllm:tp=2,\"x\"", {"r0", "r1", "r0"}};
  EXPECT_EQ(*parse_rank_index(rank_index_text(index)), index);
}

TEST(CheckpointIndex, hf_text_is_laid_out_as_transformers_writes_it) {
  EXPECT_EQ(hf_index_text({{"b", "x"}, {"a", "y"}}, 12),
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"y\",\n    \"b\": \"x\"\n  }\n}\n");
}

TEST(CheckpointIndex, unknown_keys_of_a_rank_index_are_ignored_and_ranks_may_come_in_any_order) {
  const auto index =
      parse_rank_index(R"({"format": "reshard-checkpoint", "version": 1, "layout": "hf", "new": [1],
      "world_size": 2, "ranks": [{"rank": 1, "file": "b", "more": 0}, {"file": "a", "rank": 0}]})");
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ(index->files, (std::vector<std::string>{"a", "b"}));
}

TEST(CheckpointIndex, file_names_count_from_one_for_hf_and_from_zero_for_ranks) {
  EXPECT_EQ(hf_file_name(0, 1), "model.safetensors");
  EXPECT_EQ(hf_file_name(1, 12), "model-00002-of-00012.safetensors");
  EXPECT_EQ(rank_file_name(Rank(123456)), "rank-123456.safetensors");
}

}  // namespace
}  // namespace reshard
