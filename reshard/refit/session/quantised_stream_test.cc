// SPDX-License-Identifier: Apache-2.0
// Protects: at rest, tile by tile, conversions give the bytes that the oracle says, each once, and
// scratch memory stays bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/stream.h"
#include "reshard/program/check.h"
#include "reshard/program/compile_file.h"
#include "reshard/refit/session/quantised_suite_testutil.h"

namespace reshard::quantised {
namespace {

class QuantisedStreams : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantisedStreams, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

/// Receives local tensors, and counts how often each byte arrives.
struct Received {
  RankBuffers bytes, times;
  std::mutex mutex;
  explicit Received(const std::shared_ptr<const ModelLayout>& layout)
      : bytes(allocate_all(layout)), times(allocate_all(layout)) {}
  Result<> take(Rank r, SlotId slot, Index offset, std::span<const std::byte> part) {
    const std::lock_guard lock(mutex);
    std::memcpy(bytes.at(r, slot) + offset, part.data(), part.size());
    for (std::size_t i = 0; i < part.size(); ++i) {
      std::byte& n = times.at(r, slot)[static_cast<std::size_t>(offset) + i];
      n = std::byte(std::to_integer<int>(n) + 1);
    }
    return {};
  }
  /// True if each byte of the slots arrived once, and none of any other.
  bool is_whole(Rank r, std::span<const SlotId> slots) const {
    for (const SlotId slot : times.layout().slots_of(r)) {
      const int want = std::ranges::find(slots, slot) == slots.end() ? 0 : 1;
      for (Index i = 0; i < times.bytes(r, slot); ++i)
        if (std::to_integer<int>(times.at(r, slot)[i]) != want) return false;
    }
    return true;
  }
};

TEST_P(QuantisedStreams, write_what_the_oracle_says) {
  const Case& c = GetParam();
  if (c.as_stored) GTEST_SKIP() << "bytes move as they are, by a plan between stored layouts";
  Job job(c);
  job.fill(1);
  const Planner planner =
      *Planner::make(job.source.values->shared_layout(), job.target.values->shared_layout());
  for (const Index buffer : {Index{64} << 10, Index{64} << 20}) {
    Received got(job.target.stored->shared_layout());
    StreamOptions options;
    options.threads = 2;
    options.buffer_bytes = buffer;
    options.from = job.source.quantised.get();
    options.into = job.target.quantised.get();
    const StreamSink sink = [&](Rank r, SlotId slot, Index offset,
                                std::span<const std::byte> part) {
      return got.take(r, slot, offset, part);
    };
    for (const Rank r : got.bytes.ranks()) {
      const auto slots = got.bytes.layout().slots_of(r);
      const auto done = stream_rank(planner, *job.source.stored, r, slots, sink, options);
      if (!done && done.error().code == Code::unsupported) {
        EXPECT_THAT(done.error().message, testing::HasSubstr("shards cut its blocks"));
        return;
      }
      ASSERT_EQ(outcome(done), "");
      const Program program =
          *compile_file(planner, r, slots, {.from = options.from, .into = options.into});
      EXPECT_EQ(outcome(check_program(program)), "");
      EXPECT_TRUE(got.is_whole(r, slots));
      EXPECT_EQ(different_bytes(got.bytes, *job.target.stored, r), 0);
    }
  }
}

TEST(QuantisedStream, writes_data_and_scales_by_themselves) {
  const Case c = cases().front();
  Job job(c);
  job.fill(1);
  const QuantisedLayout& into = *job.target.quantised;
  const Planner planner =
      *Planner::make(job.source.values->shared_layout(), job.target.values->shared_layout());
  const Rank r = into.stored->ranks().members().front();
  const QuantisedLayout::Pair* pair = nullptr;
  for (const auto& p : into.pairs)
    if (pair == nullptr && into.values->rank_set(into.values->slot(p.values).ranks).contains(r))
      pair = &p;
  ASSERT_NE(pair, nullptr);
  for (const SlotId only : {pair->data, pair->scales}) {
    Received got(into.stored);
    StreamOptions options;
    options.into = &into;
    const StreamSink sink = [&](Rank rank, SlotId slot, Index offset,
                                std::span<const std::byte> part) {
      return got.take(rank, slot, offset, part);
    };
    ASSERT_TRUE(stream_rank(planner, *job.source.stored, r, {&only, 1}, sink, options));
    EXPECT_TRUE(got.is_whole(r, {&only, 1}));
    EXPECT_EQ(std::memcmp(got.bytes.at(r, only), job.target.stored->at(r, only),
                          static_cast<std::size_t>(got.bytes.bytes(r, only))),
              0);
  }
}

TEST(QuantisedStream, needs_no_more_scratch_for_larger_tensors) {
  const auto scratch = [](Index hidden) {
    Case c = cases().front();
    c.config.hidden_size = hidden;
    c.config.moe_intermediate_size = hidden;
    const Job job(c);
    const QuantisedLayout& into = *job.target.quantised;
    const Planner planner =
        *Planner::make(job.source.values->shared_layout(), job.target.values->shared_layout());
    const Rank r = into.stored->ranks().members().front();
    const auto slots = into.stored->slots_of(r);
    const auto program = compile_file(
        planner, r, slots, {.into = &into, .block_bytes = 64 << 10, .unit_bytes = 64 << 10});
    return program ? program->scratch_bytes : -1;
  };
  const Index small = scratch(512), large = scratch(1024);
  EXPECT_GT(small, 0);
  EXPECT_LE(large, small + small / 4);
}

}  // namespace
}  // namespace reshard::quantised
