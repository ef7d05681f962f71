// SPDX-License-Identifier: Apache-2.0
// Protects: a layout file is refused with the entry that is wrong, or is the layout that was
// written.
#include "reshard/io/layout_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "reshard/io/files/temp_dir_testutil.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/plan/planner.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

Model model_of_config(const ModelConfig& config) {
  Model model;
  model.name = config.architecture;
  model.tensors = model_of(config);
  model.config = config;
  return model;
}

/// The elements of a local tensor on a rank: canonical tensor and element, by local element.
using Elements = std::map<Index, std::pair<TensorId, Index>>;
Elements elements_of(const ModelLayout& layout, SlotId id, Rank r) {
  Elements out;
  for (const Fragment& f : layout.local(id, r).fragments)
    for_each_element(layout.model(), f, [&](Index canonical, Index local) {
      EXPECT_TRUE(out.emplace(local, std::pair(f.tensor, canonical)).second);
    });
  return out;
}

void expect_equal_maps(const ModelLayout& a, const ModelLayout& b) {
  ASSERT_EQ(a.ranks(), b.ranks()) << a.name();
  a.ranks().for_each([&](Rank r) {
    std::map<std::string, SlotId> named;
    for (SlotId id : b.slots_of(r)) named.emplace(b.slot(id).name, id);
    ASSERT_EQ(named.size(), a.slots_of(r).size()) << a.name();
    for (SlotId id : a.slots_of(r)) {
      const Slot& slot = a.slot(id);
      SCOPED_TRACE(a.name() + " " + slot.name);
      ASSERT_TRUE(named.contains(slot.name));
      const SlotId other = named.at(slot.name);
      EXPECT_EQ(a.stored_shape(id, r), b.stored_shape(other, r));
      EXPECT_EQ(slot.dtype, b.slot(other).dtype);
      EXPECT_EQ(slot.map, b.slot(other).map);
      EXPECT_EQ(slot.padded, b.slot(other).padded);
      EXPECT_TRUE(elements_of(a, id, r) == elements_of(b, other, r));
    }
  });
}

/// All transfers of all ranks from the checkpoint to a layout.
std::vector<Transfer> deliveries(const std::shared_ptr<const ModelLayout>& from,
                                 const std::shared_ptr<const ModelLayout>& to) {
  const auto planner = Planner::make(from, to);
  EXPECT_TRUE(planner.has_value()) << planner.error().message;
  std::vector<Transfer> all;
  if (planner)
    to->ranks().for_each([&](Rank r) {
      planner->for_each_delivery(r, [&](const Transfer& t) { all.push_back(t); });
    });
  return all;
}

constexpr std::array kTexts = {
    "hf:shards=3",      "megatron:tp=2,pp=2",  "megatron:tp=4,ep=2,etp=2",
    "vllm:tp=2",        "vllm:tp=8,offset=16", "vllm:tp=2,dp=2,ep=4",
    "sglang:tp=4",      "sglang:tp=4,ep=2",    "fsdp:shard=3",
    "fsdp:shard=2,tp=2"};

TEST(LayoutFile, EveryFamilysLayoutReadsBackWithEqualShardMapsAndAnEqualPlan) {
  int compared = 0;
  const testing::TempDir folder;
  for (const ModelConfig& config : tiny_models())
    for (const char* text : kTexts) {
      const Model model = model_of_config(config);
      const auto layout = make_layout(text, model);
      if (!layout) continue;  // sizes that this architecture refuses
      const std::string path = folder.path() + "/" + std::to_string(++compared) + ".json";
      ASSERT_TRUE(write_layout_file(path, **layout).has_value());
      const auto read = make_layout("explicit:" + path, model);
      ASSERT_TRUE(read.has_value()) << text << ": " << read.error().message;
      expect_equal_maps(**layout, **read);
      const auto from = make_layout("hf", model);
      ASSERT_TRUE(from.has_value());
      EXPECT_TRUE(deliveries(*from, *layout) == deliveries(*from, *read)) << text;
    }
  EXPECT_GE(compared, 70);
}

TEST(LayoutFile, TheTextOfWhatWasReadIsTheText) {
  const Model model = model_of_config(tiny_nemotron());
  const auto layout = make_layout("vllm:tp=2,ep=2", model);
  ASSERT_TRUE(layout.has_value());
  const std::string text = layout_file_text(explicit_tensors(**layout));
  const auto read = parse_layout_file(text);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(layout_file_text(*read), text);
}

TEST(LayoutFile, RanksMoveUpByTheOffset) {
  const Model model = model_of_config(tiny_dense());
  const testing::TempDir folder;
  const std::string path = folder.path() + "/layout.json";
  ASSERT_TRUE(write_layout_file(path, **make_layout("vllm:tp=2", model)).has_value());
  const auto moved = make_layout("explicit:" + path + ",offset=7", model);
  ASSERT_TRUE(moved.has_value()) << moved.error().message;
  expect_equal_maps(**make_layout("vllm:tp=2,offset=7", model), **moved);
  const auto away = make_layout("explicit:" + path + ",offset=1048575", model);
  ASSERT_FALSE(away.has_value());
  EXPECT_THAT(away.error().message, HasSubstr("moves ranks beyond 1048575"));
}

TEST(LayoutFile, AnotherModelIsRefusedByTheTensorThatDiffers) {
  const testing::TempDir folder;
  const std::string path = folder.path() + "/layout.json";
  ASSERT_TRUE(write_layout_file(path, **make_layout("vllm:tp=2", model_of_config(tiny_dense())))
                  .has_value());
  ModelConfig wide = tiny_dense();
  wide.vocab_size = 101;
  const auto other = make_layout("explicit:" + path, model_of_config(wide));
  ASSERT_FALSE(other.has_value());
  EXPECT_THAT(other.error().message,
              HasSubstr("tensor 'model.embed_tokens.weight' is BF16 [100, 16], but BF16 [101, 16] "
                        "in the model"));
}

/// A file of two tensors a [4, 6] and b [3], and this local tensor.
std::string file_with(const std::string& local, const std::string& ranks = "0-1") {
  return R"({"format": "reshard layout", "version": 1, "name": "test", "ranks": ")" + ranks +
         R"(", "tensors": [{"name": "a", "dtype": "F32", "shape": [4, 6]},)"
         R"({"name": "b", "dtype": "F32", "shape": [3]}], "local_tensors": [)" +
         local + "]}";
}

std::string local_with(const std::string& shape, const std::string& parts,
                       const std::string& more = "") {
  return R"({"name": "x", "ranks": "0-1", "dtype": "F32", "shape": )" + shape + more +
         R"(, "parts": [)" + parts + "]}";
}

TEST(LayoutFile, PartsMayHaveGapsPermutedDimensionsAndPadding) {
  for (const std::string& local : {
           local_with("[4, 6]", R"("0[0,4)x[0,6)@0,0")"),
           local_with("[6, 4]", R"("0[0,4)x[0,6)@0,0>1,0")"),
           local_with("[8, 6]", R"("0[0,4)x[0,6)@0,0*2,1","0[0,4)x[0,6)@1,0*2,1")"),
           local_with("[5, 6]", R"("0[0,4)x[0,6)@1,0")", R"(, "padded": true)"),
           local_with("[1, 4, 6]", R"("0[0,4)x[0,6)@0,0,0")", R"(, "merged": [0])"),
           local_with("[0, 6]", ""),
       }) {
    const auto read = parse_layout_file(file_with(local));
    EXPECT_TRUE(read.has_value()) << local << ": " << read.error().message;
  }
}

TEST(LayoutFile, WrongEntriesAreNamed) {
  struct Row {
    std::string local, said;
  };
  const Row rows[] = {
      {local_with("[4, 6]", R"("2[0,4)x[0,6)@0,0")"), "part 1: there is no tensor 2"},
      {local_with("[4, 6]", R"("0[0,4)x[0,7)@0,0")"), "is not a box of 'a' [4, 6]"},
      {local_with("[4, 6]", R"("0[0,4)@0,0")"), "is not a box of 'a'"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@1,0")"), "reaches outside [4, 6]"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@0,0*2,1")"), "reaches outside [4, 6]"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@0,0>1,1")"), "a dimension of [4, 6] of its own"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@0,0>0,7")"), "a dimension of [4, 6] of its own"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@0")"), "local tensor 1: part 1 must be as"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@0,0>0,9")"), "part 1 must be as"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@0,0*0,1")"), "part 1 must be as"},
      {local_with("[4, 6]", R"("0[4,4)x[0,6)@0,0")"), "part 1 must be as"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@0,0 ")"), "part 1 must be as"},
      {local_with("[4, 6]", "7"), "part 1 must be as"},
      {local_with("[4, 6]", R"("0[0,4)x[0,6)@0,0","1[0,1)@3,5")"), "parts 1 and 2 overlap"},
      {local_with("[9, 6]", R"("0[0,4)x[0,6)@0,0*2,1","0[0,3)x[0,6)@0,0*4,1")"),
       "parts 1 and 2 overlap"},
      {local_with("[5, 6]", R"("0[0,4)x[0,6)@0,0")"), "6 of 30 elements belong to no canonical"},
      {local_with("[1125899906842624, 1125899906842624]", ""), "is not a possible size"},
      {local_with("[4, 6]", "", R"(, "merged": [1])"), "merged must be dimensions before the last"},
      {local_with("[4, 6]", "", R"(, "padded": 1)"), "padded must be true or false"},
      {local_with("[4, 6]", "", R"(, "map": "exp")"), "map must be one of identity"},
      {local_with("[4, 6]", "", R"(, "part": [])"), "unknown key \"part\""},
      {R"({"name": "x", "ranks": "2", "dtype": "F32", "shape": []})", "a rank is not among those"},
      {R"({"name": "x", "ranks": "1,0", "dtype": "F32", "shape": []})", "ranks must be ascending"},
      {R"({"name": "x", "ranks": "1048576", "dtype": "F32", "shape": []})", "ranks must be ascend"},
      {R"({"name": "x", "ranks": "0", "dtype": "F33", "shape": []})", "dtype must be one of"},
      {R"({"ranks": "0", "dtype": "F32", "shape": []})", "name must be a string"},
  };
  for (const Row& row : rows) {
    const auto read = parse_layout_file(file_with(row.local));
    ASSERT_FALSE(read.has_value()) << row.local;
    EXPECT_EQ(read.error().code, Code::corrupt) << row.local;
    EXPECT_THAT(read.error().message, HasSubstr(row.said)) << row.local;
  }
}

TEST(LayoutFile, ANameTwiceOnARankIsRefused) {
  const std::string local = local_with("[3]", R"("1[0,3)@0")");
  auto file = parse_layout_file(file_with(local + "," + local));
  ASSERT_TRUE(file.has_value());
  Model model;
  model.tensors = file->tensors;
  const testing::TempDir folder;
  const std::string path = folder.write("twice.json", file_with(local + "," + local));
  const auto layout = make_layout("explicit:" + path, model);
  ASSERT_FALSE(layout.has_value());
  EXPECT_THAT(layout.error().message,
              HasSubstr("local name 'x' is given to two tensors of rank 0"));
}

TEST(LayoutFile, OtherVersionsAndFormatsAreRefused) {
  std::string text = file_with("");
  auto later = parse_layout_file(text.replace(text.find("\"version\": 1"), 12, "\"version\": 2"));
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().code, Code::unsupported);
  EXPECT_FALSE(parse_layout_file("{}").has_value());
  EXPECT_FALSE(parse_layout_file(R"({"format": "rules"})").has_value());
}

TEST(LayoutFile, InterlockedPartsAreComparedOrRefusedInBoundedTime) {
  // Each next part is a strip beside all that follow: one level of splitting per part.
  std::string parts;
  constexpr int kNested = 3000;
  for (int i = 0; i < kNested; ++i)
    parts +=
        fmt::format("{}\"0[0,{})x[0,{})@{},{}\"", i == 0 ? "" : ",", i % 2 == 0 ? 1 : kNested - i,
                    i % 2 == 0 ? kNested - i : 1, (i + 1) / 2, i / 2);
  const std::string text = fmt::format(
      R"({{"format": "reshard layout", "version": 1, "name": "test", "ranks": "0", "tensors": )"
      R"([{{"name": "a", "dtype": "F32", "shape": [{0}, {0}]}}], "local_tensors": [{{"name": "x", )"
      R"("ranks": "0", "dtype": "F32", "shape": [{0}, {0}], "padded": true, "parts": [{1}]}}]}})",
      kNested, parts);
  const auto read = parse_layout_file(text);
  EXPECT_TRUE(read.has_value() || read.error().code == Code::unsupported);
}

}  // namespace
}  // namespace reshard
