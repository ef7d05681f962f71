// SPDX-License-Identifier: Apache-2.0
// Protects: metadata survive a round trip, their encoding stays small at scale, and corrupt bytes
// cause nothing but an error.
#include "reshard/model/reported/metadata_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/model/configs_testutil.h"
#include "reshard/model/reported/gathered.h"
#include "reshard/model/reported/metadata_testutil.h"

namespace reshard {
namespace {

using ::testing::HasSubstr;

GatheredMetadata tiny(const char* layout) {
  const ModelConfig c = tiny_moe();
  return reported_by(*layout_of(layout, model_of(c), c), c);
}

TEST(MetadataCodec, gives_back_what_was_gathered) {
  GatheredMetadata all = tiny("megatron:tp=2,ep=2,pp=2,cp=2,etp=1,offset=3");
  auto& p = all.templates[0].parameters[0];
  p.partition_sizes = std::vector<Index>{p.shape[0] - 1, 0, 1};
  p.num_experts = 12;
  const auto bytes = encode_metadata(all);
  const auto back = decode_metadata(bytes);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, all);
  EXPECT_EQ(encode_metadata(*back), bytes);
  EXPECT_EQ(*decode_metadata(encode_metadata({})), GatheredMetadata{});
}

TEST(MetadataCodec, ranks_sent_one_by_one_gather_into_the_same) {
  const ModelConfig c = tiny_moe();
  const auto layout = layout_of("megatron:tp=2,ep=2,pp=2", model_of(c), c);
  MetadataGatherer gatherer;
  layout->ranks().for_each([&](Rank r) {
    MetadataGatherer one;
    ASSERT_TRUE(one.add(reported_by(*layout, c, r)).has_value());
    const auto sent = decode_metadata(encode_metadata(std::move(one).finish()));
    ASSERT_TRUE(sent.has_value()) << sent.error().message;
    ASSERT_TRUE(gatherer.add(*sent).has_value());
  });
  EXPECT_EQ(std::move(gatherer).finish(), reported_by(*layout, c));
}

TEST(MetadataCodec, a_thousand_ranks_of_a_large_model_are_small) {
  const ModelConfig c = qwen3_235b();
  const auto layout =
      layout_of("megatron:tp=4,pp=8,ep=8,etp=1,dp=32,first=11,last=11", model_of(c), c);
  ASSERT_EQ(layout->ranks().size(), 1024);
  std::size_t one_by_one = 0;
  MetadataGatherer gatherer;
  for (int r = 0; r < 1024; ++r) {
    const RankMetadata mine = reported_by(*layout, c, Rank(r));
    ASSERT_TRUE(gatherer.add(mine).has_value());
    if (r % 64 != 0) continue;  // every stage
    MetadataGatherer one;
    ASSERT_TRUE(one.add(mine).has_value());
    one_by_one += encode_metadata(std::move(one).finish()).size() * 64;
  }
  const GatheredMetadata all = std::move(gatherer).finish();
  EXPECT_LE(all.templates.size(), 8u);
  EXPECT_LT(one_by_one, 20u << 20);                  // what travels
  EXPECT_LT(encode_metadata(all).size(), 1u << 20);  // what is kept
}

TEST(MetadataCodec, refuses_every_truncation) {
  const auto bytes = encode_metadata(tiny("megatron:tp=2,ep=2"));
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    const auto read = decode_metadata(std::span(bytes).first(n));
    ASSERT_FALSE(read.has_value()) << n;
    EXPECT_EQ(read.error().code, Code::corrupt);
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_THAT(decode_metadata(longer).error().message, HasSubstr("1 bytes after the end"));
}

TEST(MetadataCodec, names_the_version_it_does_not_know) {
  auto bytes = encode_metadata({});
  bytes[4] = std::byte{2};
  EXPECT_THAT(decode_metadata(bytes).error().message, HasSubstr("version 2, this build reads 1"));
  bytes[0] = std::byte{'X'};
  EXPECT_THAT(decode_metadata(bytes).error().message, HasSubstr("does not begin with RSHM"));
}

/// Bytes after magic and version.
Result<GatheredMetadata> decode(std::initializer_list<int> rest) {
  std::vector<std::byte> bytes;
  for (char c : {'R', 'S', 'H', 'M', '\1'}) bytes.push_back(static_cast<std::byte>(c));
  for (int b : rest) bytes.push_back(static_cast<std::byte>(b));
  return decode_metadata(bytes);
}

TEST(MetadataCodec, refuses_what_does_not_hold_together) {
  // The good one: name "a", group {0}, a kind [4] cut over slot 0, one template, rank 0.
  ASSERT_TRUE(
      decode({1, 0, 1, 'a', 1, 1, 0, 1, 1, 4, 1, 4, 0, 2, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0})
          .has_value());
  const auto said = [](std::initializer_list<int> rest) {
    const auto read = decode(rest);
    return read ? "" : read.error().message;
  };
  EXPECT_THAT(said({100}), HasSubstr("the number of names is 100, at most 0"));
  EXPECT_THAT(said({2, 0, 1, 'b', 0, 1, 'a', 0, 0, 0, 0}), HasSubstr("names are not in order"));
  EXPECT_THAT(said({1, 1, 1, 'b', 0, 0, 0, 0}), HasSubstr("shared length is 1, at most 0"));
  EXPECT_THAT(said({0, 1, 2, 2, 0, 0, 0, 0}), HasSubstr("a group repeats a rank"));
  EXPECT_THAT(said({0, 1, 1, 1, 0, 0, 0}), HasSubstr("a rank of a group is -1"));
  // partition_dim 1 of a tensor of one dimension.
  EXPECT_THAT(
      said({1, 0, 1, 'a', 1, 1, 0, 1, 1, 4, 1, 4, 2, 2, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0}),
      HasSubstr("partition_dim 1 is outside its shape [4]"));
  // Rank 1 in a group of rank 0.
  EXPECT_THAT(
      said({1, 0, 1, 'a', 1, 1, 0, 1, 1, 4, 1, 4, 0, 2, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0}),
      HasSubstr("rank 1 is not in its group"));
  // No groups for a parameter that names one.
  EXPECT_THAT(
      said({1, 0, 1, 'a', 1, 1, 0, 1, 1, 4, 1, 4, 0, 2, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0}),
      HasSubstr("too few groups"));
}

RC_GTEST_PROP(MetadataCodec, changed_bytes_are_refused_or_keep_every_invariant, ()) {
  static const auto good = encode_metadata(tiny("megatron:tp=2,ep=2,pp=2"));
  auto bytes = good;
  const int changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes; ++i)
    bytes[static_cast<std::size_t>(*rc::gen::inRange<Index>(0, static_cast<Index>(bytes.size())))] =
        static_cast<std::byte>(*rc::gen::inRange(0, 256));
  const auto read = decode_metadata(bytes);
  if (!read) return;
  RC_ASSERT(*decode_metadata(encode_metadata(*read)) == *read);
  MetadataGatherer gatherer;
  for (std::size_t i = 0; i < read->ranks.size(); ++i)
    if (const auto rank = expand(*read, i)) RC_ASSERT(gatherer.add(*rank).has_value());
  if (const auto pair = gathered_layouts(*read, *read))
    pair->source->ranks().for_each(
        [&](Rank r) { RC_ASSERT(check_shard_map(*pair->source, r).has_value()); });
}

}  // namespace
}  // namespace reshard
