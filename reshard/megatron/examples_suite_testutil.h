// SPDX-License-Identifier: Apache-2.0
// The numeric examples of the source documents with bytes that move, as a suite that a backend's
// test program includes once and instantiates: RESHARD_TEST_EXAMPLES(Name, under_test). Where each
// element belongs is written down a second time here, element by element.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "reshard/megatron/examples_testutil.h"
#include "reshard/megatron/mxfp8_transform.h"
#include "reshard/megatron/parameter_planning.h"
#include "reshard/megatron/reshard_plan.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::megatron {

class ExamplesOverTransport
    : public testing::TestWithParam<std::tuple<TransportUnderTest, TilingExample>> {
 protected:
  static const TilingExample& example() { return std::get<1>(GetParam()); }
  static void run(const RankBody& body) {
    const auto ended = std::get<0>(GetParam()).run(example().ranks(), [&](RankEnds& ends) {
      body(ends);
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "");
  }
};

/// The slices of the example's parameter that `me` takes, by the documented calls.
inline std::vector<SourceSlice> documented_slices(const TilingExample& e, int me) {
  std::vector<ParameterMetadata> sources;
  for (int m = 0; m < e.src.members; ++m) sources.push_back(metadata_of(e, e.src, m));
  const auto dst = metadata_of(e, e.dst, me - e.dst.first);
  const auto chosen = select_src_metadata_balanced(sources, dst, Rank(me));
  EXPECT_EQ(outcome(chosen), "");
  auto slices = determine_source_ranks_for_dst_param("w", **chosen, dst, Rank(me));
  EXPECT_EQ(outcome(slices), "");
  return *std::move(slices);
}

// planner: "TP-only planner using LCM tiling to support strides on source/destination": the slices
// that it gives, submitted to a copy service, put every element where its shard has it.
TEST_P(ExamplesOverTransport, the_documented_slices_move_every_element) {
  const TilingExample& e = example();
  if (!e.divides) return;  // Their planner refuses it: the next test.
  run([&](RankEnds& ends) {
    const int me = ends.rank().value();
    const ExampleShard from(e, e.src, me, true), to(e, e.dst, me, false);
    TransportCopyService service(*ends.transport, *ends.control, 60);
    for (int dst = e.dst.first; dst < e.dst.end(); ++dst) {
      const auto slices = documented_slices(e, dst);
      for (std::size_t i = 0; i < slices.size(); ++i) {
        const TaskId id{100 * dst + static_cast<std::int64_t>(i)};
        if (slices[i].src_rank == ends.rank()) {
          ASSERT_TRUE(service.submit_send(*slice(from.view(), slices[i].src_slice), Rank(dst), id));
        }
        if (dst == me) {
          ASSERT_TRUE(
              service.submit_recv(*slice(to.view(), slices[i].dst_slice), slices[i].src_rank, id));
        }
      }
    }
    ASSERT_EQ(outcome(service.run()), "");
    EXPECT_EQ(to.wrong(), 0);
  });
}

// planner, build_centralized_reshard_plan: its results, executed, by either planner; also for sizes
// that their tiling refuses.
TEST_P(ExamplesOverTransport, plans_built_centrally_move_every_element) {
  const TilingExample& e = example();
  run([&](RankEnds& ends) {
    const int me = ends.rank().value();
    const RefitGroup group{ends.control.get(), ends.transport.get()};
    for (const PlannedBy by : {PlannedBy::every_rank, PlannedBy::rank_zero}) {
      ExampleShard from(e, e.src, me, true), to(e, e.dst, me, false);
      PlanArguments how;
      how.planned_by = by;
      const auto plan = build_centralized_reshard_plan(group, from.module(), to.module(), how);
      ASSERT_EQ(outcome(plan), "");
      TransportCopyService service(*ends.transport, *ends.control, 60);
      ASSERT_EQ(outcome(execute_reshard_plan(*plan, from.module(), to.module(), service, group)),
                "");
      EXPECT_EQ(to.wrong(), 0);
    }
  });
}

/// An operation as its two sides must agree on it.
struct ToldOp {
  std::int64_t task = 0, sender = 0, receiver = 0, elements = 0;
  friend auto operator<=>(const ToldOp&, const ToldOp&) = default;
};

// utils: task_id, "equal on sender and receiver with no coordinator".
TEST_P(ExamplesOverTransport, both_sides_of_an_operation_have_its_task_id) {
  const TilingExample& e = example();
  run([&](RankEnds& ends) {
    const int me = ends.rank().value();
    ExampleShard from(e, e.src, me, true), to(e, e.dst, me, false);
    const RefitGroup group{ends.control.get(), ends.transport.get()};
    const auto plan = build_centralized_reshard_plan(group, from.module(), to.module());
    ASSERT_EQ(outcome(plan), "");
    std::multiset<ToldOp> all[2];
    for (const bool sends : {true, false}) {
      std::vector<ToldOp> mine;
      for (const TransferOp& op : sends ? plan->send_ops : plan->recv_ops)
        mine.push_back({op.task_id, sends ? me : op.peer_rank.value(),
                        sends ? op.peer_rank.value() : me, volume(op.my_slice.shape())});
      const auto gathered = ends.control->all_gather(std::as_bytes(std::span(mine)), patient());
      ASSERT_EQ(outcome(gathered), "");
      for (const auto& bytes : *gathered)
        for (std::size_t at = 0; at < bytes.size(); at += sizeof(ToldOp)) {
          ToldOp op;
          std::memcpy(&op, bytes.data() + at, sizeof op);
          all[sends ? 0 : 1].insert(op);
        }
    }
    EXPECT_FALSE(all[0].empty());
    EXPECT_EQ(all[0], all[1]);
    std::set<std::int64_t> ids;
    for (const ToldOp& op : all[0]) EXPECT_TRUE(ids.insert(op.task).second) << op.task;
  });
}

class ExamplesOfCalls : public testing::TestWithParam<TransportUnderTest> {};

// utils: "choosing via dst_rank % num_src_dp_groups ensures even distribution": a whole tensor
// comes from the replica that is said, which has put its rank into it.
TEST_P(ExamplesOfCalls, destinations_read_the_replica_that_is_chosen) {
  constexpr int kSources = 3, kRanks = 8;
  const TilingExample e{"whole", {4, 3}, {0, 1}, {0, 1}};
  const auto ended = GetParam().run(kRanks, [&](RankEnds& ends) {
    const int me = ends.rank().value();
    std::vector<ParameterMetadata> sources;
    for (int r = 0; r < kSources; ++r) sources.push_back(metadata_of(e, {r, 1}, 0));
    const OwnedTensor mine = *make_tensor(DType::u8, {4, 3}), got = *make_tensor(DType::u8, {4, 3});
    std::ranges::fill(bytes_of(mine.view), static_cast<std::byte>(me + 1));
    TransportCopyService service(*ends.transport, *ends.control, 60);
    for (int dst = 0; dst < kRanks; ++dst) {
      const auto to = metadata_of(e, {dst, 1}, 0);
      const auto& chosen = **select_src_metadata_balanced(sources, to, Rank(dst));
      const auto slices = *finalize_dp_transfers("w", chosen, to, Rank(dst));
      ASSERT_EQ(slices.size(), 1U);
      const TaskId id{dst};
      if (slices[0].src_rank == ends.rank()) {
        ASSERT_TRUE(service.submit_send(*slice(mine.view, slices[0].src_slice), Rank(dst), id));
      }
      if (dst == me) {
        ASSERT_TRUE(
            service.submit_recv(*slice(got.view, slices[0].dst_slice), slices[0].src_rank, id));
      }
    }
    ASSERT_EQ(outcome(service.run()), "");
    // "Selection prefers a local copy"; else group dst % 3, which has one entry.
    const int want = me < kSources ? me : me % kSources;
    for (const std::byte b : bytes_of(got.view)) EXPECT_EQ(std::to_integer<int>(b), want + 1);
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

// MXFP8 from columns that two trainers have halves of, which cut a block of 32; converted on send
// and on receive, scales 2-D and 1-D; on ranks of their own and on a trainer's.
TEST_P(ExamplesOfCalls, mxfp8_bytes_are_those_of_the_whole_weight) {
  for (const auto& [swizzled, on_send, target] :
       {std::tuple{false, false, 2}, std::tuple{false, true, 2}, std::tuple{true, false, 2},
        std::tuple{true, true, 2}, std::tuple{false, true, 0}, std::tuple{true, false, 1}}) {
    const auto ended = GetParam().run(3, [&, swizzled = swizzled, on_send = on_send,
                                          target = target](RankEnds& ends) {
      const int me = ends.rank().value();
      const Mxfp8Example ramp = mxfp8_ramp(me);
      const auto got = *make_mxfp8({130, 96}, swizzled);
      const PersistentBuffers buffers =
          me == target ? PersistentBuffers{{"w", got}} : PersistentBuffers{};
      MXFP8ReshardTransform transform({"w"}, buffers, "", on_send);
      Module* src = ramp.module.get();
      Module to = mxfp8_target(target);
      Module* dst = me == target ? &to : nullptr;
      const RefitGroup group{ends.control.get(), ends.transport.get()};
      const auto plan = build_centralized_reshard_plan(group, src, dst);
      ASSERT_EQ(outcome(plan), "");
      TransportCopyService service(*ends.transport, *ends.control, 60);
      for (int round = 0; round < 2; ++round)
        ASSERT_EQ(outcome(execute_reshard_plan(*plan, src, dst, service, group, &transform)), "");
      if (me == target) expect_ramp(*got);
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "") << swizzled << on_send << target;
  }
}

inline std::string example_name(
    const testing::TestParamInfo<ExamplesOverTransport::ParamType>& info) {
  return std::get<1>(info.param).name;
}

#define RESHARD_TEST_EXAMPLES(Name, under_test)                                            \
  INSTANTIATE_TEST_SUITE_P(                                                                \
      Name, ExamplesOverTransport,                                                         \
      testing::Combine(testing::Values(under_test), testing::ValuesIn(tiling_examples())), \
      example_name);                                                                       \
  INSTANTIATE_TEST_SUITE_P(Name, ExamplesOfCalls, testing::Values(under_test))

}  // namespace reshard::megatron
