// SPDX-License-Identifier: Apache-2.0
// Protects: operations and plans are those of the source documents core.resharding.utils and
// .planner; running them by hand, or with a custom transform, puts every value in place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "reshard/megatron/swap_testutil.h"

namespace reshard::megatron {
namespace {

using ::testing::HasSubstr;

SwapLayouts overlapping() {
  return {"", tiny_glm(), sized(2, "pp=2,ep=2,etp=1"), sized(2, "ep=1,etp=1,offset=3"), 6};
}

PlanArguments arguments_of(const SwapRank& me) {
  return {8, me.arguments.src_rank_offset, me.arguments.dst_rank_offset, 60};
}

Module* src(SwapRank& me) { return me.source ? me.source->get() : nullptr; }
Module* tgt(SwapRank& me) { return me.target ? me.target->get() : nullptr; }

// utils: "Single logical send/recv operation used in a reshard plan." Members: param_name,
// peer_rank, is_send, my_slice, peer_slice, task_id.
TEST(TransferOps, meet_their_other_side_by_task_id) {
  std::mutex mutex;
  std::map<std::int64_t, std::vector<std::pair<Rank, TransferOp>>> all;
  run_job(overlapping(), [&](SwapRank& me, RankEnds& ends) {
    const auto plan = build_centralized_reshard_plan(me.group, src(me), tgt(me), arguments_of(me));
    ASSERT_TRUE(plan) << plan.error().message;
    const std::lock_guard lock(mutex);
    for (const auto* ops : {&plan->send_ops, &plan->recv_ops})
      for (const TransferOp& op : *ops) all[op.task_id].emplace_back(ends.rank(), op);
  });
  EXPECT_GT(all.size(), 20U);
  for (const auto& [id, ends] : all) {
    ASSERT_EQ(ends.size(), 2U) << id;
    const bool first = ends[0].second.is_send;
    const auto& [sender, send] = ends[first ? 0 : 1];
    const auto& [receiver, recv] = ends[first ? 1 : 0];
    EXPECT_TRUE(send.is_send);
    EXPECT_FALSE(recv.is_send);
    EXPECT_EQ(send.peer_rank, receiver);
    EXPECT_EQ(recv.peer_rank, sender);
    EXPECT_EQ(send.my_slice, recv.peer_slice);
    EXPECT_EQ(send.peer_slice, recv.my_slice);
    EXPECT_EQ(send.my_slice.shape(), recv.my_slice.shape());
  }
}

// utils: "ReshardPlan - operations for this rank": send_ops, recv_ops, transform, buffer_dtypes,
// __str__.
TEST(ReshardPlan, has_operations_and_room_for_a_transform_and_dtypes) {
  ReshardPlan plan;
  EXPECT_EQ(plan.transform, nullptr);
  EXPECT_EQ(plan.buffer_dtypes, std::nullopt);
  plan.send_ops.resize(3);
  plan.recv_ops.resize(2);
  EXPECT_EQ(to_string(plan), "ReshardPlan(sends=3, recvs=2)");
}

// planner: "src_module=None: Rank doesn't have source model (destination-only)"; "dst_module=None:
// Rank doesn't have destination model (source-only)"; "Both provided: Rank has both models
// (collocated mode)". "Each rank provides metadata only for the models it owns".
TEST(BuildCentralizedReshardPlan, takes_ranks_with_one_model_both_or_none) {
  run_job(overlapping(), [](SwapRank& me, RankEnds& ends) {
    const auto plan = build_centralized_reshard_plan(me.group, src(me), tgt(me), arguments_of(me));
    ASSERT_TRUE(plan) << plan.error().message;
    const int r = ends.rank().value();
    EXPECT_EQ(plan->send_ops.empty(), r >= 4);
    EXPECT_EQ(plan->recv_ops.empty(), r != 3 && r != 4);
    for (const TransferOp& op : plan->recv_ops) EXPECT_LT(op.peer_rank.value(), 4);
    // Rank 3 holds parts of both: what it has itself comes from itself.
    std::set<Rank> from;
    for (const TransferOp& op : plan->recv_ops) from.insert(op.peer_rank);
    EXPECT_EQ(from.contains(ends.rank()), r == 3);
  });
}

// planner: "Centralized planning: Rank 0 builds complete plan for all ranks, then scatters."
TEST(BuildCentralizedReshardPlan, is_the_same_from_rank_0_as_from_every_rank_itself) {
  run_job(overlapping(), [](SwapRank& me, RankEnds&) {
    PlanArguments how = arguments_of(me);
    const auto own = build_centralized_reshard_plan(me.group, src(me), tgt(me), how);
    how.planned_by = PlannedBy::rank_zero;
    const auto central = build_centralized_reshard_plan(me.group, src(me), tgt(me), how);
    ASSERT_TRUE(own && central);
    EXPECT_EQ(own->send_ops, central->send_ops);
    EXPECT_EQ(own->recv_ops, central->recv_ops);
  });
}

// planner: "num_experts: int = None": a dense model needs none.
TEST(BuildCentralizedReshardPlan, of_dense_models_needs_no_number_of_experts) {
  run_job({"", tiny_dense(), sized(2, ""), sized(1, ""), 2}, [](SwapRank& me, RankEnds& ends) {
    const auto plan = build_centralized_reshard_plan(me.group, src(me), tgt(me));
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->recv_ops.empty(), ends.rank() == Rank(1));
    TransportCopyService service(*ends.transport, *ends.control, 60);
    me.begin(1);
    ASSERT_EQ(outcome(execute_reshard_plan(*plan, src(me), tgt(me), service, me.group)), "");
    EXPECT_EQ(me.wrong(1), "");
  });
}

TEST(BuildPlan, keeps_the_planner_of_the_operations) {
  run_job(overlapping(), [](SwapRank& me, RankEnds& ends) {
    const auto built = build_plan(me.group, src(me), tgt(me), arguments_of(me));
    ASSERT_TRUE(built) << built.error().message;
    EXPECT_TRUE(built->ignore.empty());
    EXPECT_EQ(built->planner->ranks().contains(ends.rank()), me.source || me.target);
    EXPECT_EQ(built->plan.recv_ops, replayed_reshard_plan(*built->planner, ends.rank()).recv_ops);
  });
}

TEST(BuildCentralizedReshardPlan, persistent_buffers_travel_and_others_do_not) {
  run_job(overlapping(), [](SwapRank& me, RankEnds&) {
    const auto plan = build_centralized_reshard_plan(me.group, src(me), tgt(me), arguments_of(me));
    ASSERT_TRUE(plan);
    bool bias = false;
    for (const TransferOp& op : plan->recv_ops) {
      bias |= op.param_name.ends_with("expert_bias");
      EXPECT_THAT(op.param_name, testing::Not(HasSubstr("local_tokens")));
    }
    EXPECT_EQ(bias, me.target != nullptr);
  });
}

TEST(BuildCentralizedReshardPlan, a_module_without_groups_is_an_error_on_all) {
  run_job(overlapping(), [](SwapRank& me, RankEnds& ends) {
    if (ends.rank() == Rank(1)) me.source->module().pg_collection.reset();
    const auto plan = build_centralized_reshard_plan(me.group, src(me), tgt(me), arguments_of(me));
    ASSERT_FALSE(plan);
    EXPECT_THAT(plan.error().message, HasSubstr("source: the module has no pg_collection"));
  });
}

TEST(ExecuteReshardPlan, puts_every_value_in_place) {
  run_job(overlapping(), [](SwapRank& me, RankEnds& ends) {
    const auto plan = build_centralized_reshard_plan(me.group, src(me), tgt(me), arguments_of(me));
    ASSERT_TRUE(plan) << plan.error().message;
    TransportCopyService service(*ends.transport, *ends.control, 60);
    for (std::uint64_t seed : {1U, 2U}) {
      me.begin(seed);
      ASSERT_EQ(outcome(execute_reshard_plan(*plan, src(me), tgt(me), service, me.group)), "");
      EXPECT_EQ(me.wrong(seed), "");
    }
  });
}

TEST(ExecuteReshardPlan, an_operation_of_a_parameter_that_is_gone_ends_the_refit_for_all) {
  run_job(overlapping(), [](SwapRank& me, RankEnds& ends) {
    auto plan = build_centralized_reshard_plan(me.group, src(me), tgt(me), arguments_of(me));
    ASSERT_TRUE(plan) << plan.error().message;
    if (ends.rank() == Rank(4)) plan->recv_ops[0].param_name = "gone";
    TransportCopyService service(*ends.transport, *ends.control, 60);
    const auto done = execute_reshard_plan(*plan, src(me), tgt(me), service, me.group);
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message, HasSubstr("'gone' of the plan is not in the module"));
  });
}

/// A transform of a user: linear weights travel as two halves with all bits turned, and are turned
/// back where they arrive.
class TurnedHalves final : public ReshardTransform {
 public:
  explicit TurnedHalves(std::shared_ptr<const TensorDict> target) : target_(std::move(target)) {}
  int sent = 0, received = 0, begun = 0, finished = 0;

  bool should_transform(std::string_view name) const override {
    return name.find("linear_fc") != std::string_view::npos && name.ends_with("weight");
  }
  Result<std::vector<WireTensor>> prepare_send(std::string_view, const Box& src_slice,
                                               const Tensor& src_param, const Box&) override {
    ++sent;
    auto turned =
        std::make_shared<OwnedTensor>(*make_tensor(src_param.view.dtype, src_slice.shape()));
    const TensorView from = RESHARD_TRY(slice(src_param.view, src_slice));
    RESHARD_TRY(copy(from, turned->view));
    for (std::byte& b : bytes_of(turned->view)) b = ~b;
    return halves(turned);
  }
  Result<std::vector<WireTensor>> prepare_recv(std::string_view, const Box& dst_slice) override {
    return halves(std::make_shared<OwnedTensor>(*make_tensor(DType::bf16, dst_slice.shape())));
  }
  Result<> finalize_recv(std::string_view name, const Box& dst_slice,
                         std::span<const WireTensor> buffers) override {
    ++received;
    const TensorView whole = std::static_pointer_cast<const OwnedTensor>(buffers[0].owner)->view;
    for (std::byte& b : bytes_of(whole)) b = ~b;
    const Tensor& tensor = **target_->find(name);
    const TensorView place = RESHARD_TRY(slice(tensor.view, dst_slice));
    return copy(whole, place);
  }
  void begin() override { ++begun; }
  Result<> finish() override {
    ++finished;
    return {};
  }

 private:
  static Result<std::vector<WireTensor>> halves(const std::shared_ptr<OwnedTensor>& whole) {
    const Box box = Box::whole(whole->view.shape);
    const Index middle = box[0].end() / 2;
    std::vector<WireTensor> out;
    for (const Interval rows : {Interval{0, middle}, Interval{middle, box[0].end()}})
      out.push_back({RESHARD_TRY(slice(whole->view, box.with(0, rows))), whole});
    return out;
  }
  std::shared_ptr<const TensorDict> target_;
};

// transforms: "each TransferOp is checked via should_transform(param_name); if True the transform
// methods are used instead of the default send/recv/writeback logic." refit: "transform - Optional
// ReshardTransform for custom format conversion." Several tensors of one task id stay apart, on the
// rank itself too.
TEST(SwapModelWeights, uses_the_transform_that_it_is_given) {
  run_job(overlapping(), [](SwapRank& me, RankEnds&) {
    const auto transform = std::make_shared<TurnedHalves>(
        me.target ? get_refit_tensor_dict(me.target->module()) : nullptr);
    me.arguments.transform = transform;
    expect_swap(me, 1, "inproc");
    const ReshardPlan& plan = *me.context->find_plan(build_plan_cache_key(
        *unwrap_model_cores(me.src(), me.tgt(), nullptr), me.group, me.arguments));
    EXPECT_EQ(plan.transform, nullptr) << "it is the call's, not the plan's";
    int sends = 0, recvs = 0;
    for (const TransferOp& op : plan.send_ops) sends += transform->should_transform(op.param_name);
    for (const TransferOp& op : plan.recv_ops) recvs += transform->should_transform(op.param_name);
    EXPECT_EQ(transform->sent, sends);
    EXPECT_EQ(transform->received, recvs);
    EXPECT_EQ(transform->begun, 1);
    EXPECT_EQ(transform->finished, 1);
    expect_swap(me, 2, *get_or_create_service("inproc", nullptr, *me.context));
    EXPECT_EQ(transform->sent, 2 * sends);
    me.arguments.transform = nullptr;
    expect_swap(me, 3, "inproc");
    EXPECT_EQ(transform->sent, 2 * sends) << "without it, values go by the session again";
  });
}

TEST(SwapModelWeights, a_transform_of_one_rank_takes_all_ranks_by_operations) {
  run_job(overlapping(), [](SwapRank& me, RankEnds& ends) {
    const auto none = std::make_shared<ReshardTransform>();
    if (ends.rank() == Rank(5)) me.arguments.transform = none;  // an idle rank
    expect_swap(me, 1, "inproc");
    EXPECT_EQ(me.context->sessions_prepared(), 0U);
  });
}

}  // namespace
}  // namespace reshard::megatron
