// SPDX-License-Identifier: Apache-2.0
// Protects: the functions behave as the source document core.resharding.refit says, sentence by
// sentence, and also detect what it does not mention: changed models, models of equal sizes, a
// failing rank.
#include "reshard/megatron/refit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "reshard/megatron/swap_testutil.h"

namespace reshard::megatron {
namespace {

using ::testing::HasSubstr;

// refit: "Return the cached reshard plan, building it (collectively) if not yet cached."
TEST(SwapModelWeights, plans_once_and_prepares_one_session) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds&) {
    for (std::uint64_t seed = 1; seed < 6; ++seed) expect_swap(me, seed);
    EXPECT_EQ(me.context->plans_built(), 1U);
    EXPECT_EQ(me.context->sessions_prepared(), 1U);
    EXPECT_NE(me.context->find_plan(key_of(me)), nullptr);
  });
}

// refit: "The plan is stored in the same module-level cache as swap_model_weights, so subsequent
// calls reuse it"
TEST(PrepareSwapModelWeights, makes_the_plan_that_swap_model_weights_uses) {
  run_job(disjoint(), [](SwapRank& me, RankEnds&) {
    for (int i = 0; i < 2; ++i)
      ASSERT_EQ(outcome(prepare_swap_model_weights(me.src(), me.tgt(), me.arguments, *me.context)),
                "");
    EXPECT_EQ(me.context->plans_built(), 1U);
    EXPECT_EQ(me.context->num_services(), 0U);
    expect_swap(me, 1);
    EXPECT_EQ(me.context->plans_built(), 1U);
  });
}

// refit: "refit_method - a string backend name (one of the supported refit backends) or a
// CopyService instance."
TEST(SwapModelWeights, takes_a_backends_name_or_a_service) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    expect_swap(me, 1, "inproc");
    expect_swap(me, 2, "shm");
    TransportCopyService service(*ends.transport, *ends.control, 60);
    expect_swap(me, 3, &service);
    EXPECT_EQ(me.context->plans_built(), 1U);
  });
}

/// A service of a user: counts, and lets another do the work.
class CountingService final : public CopyService {
 public:
  explicit CountingService(CopyService& inner) : inner_(inner) {}
  std::size_t sends = 0, recvs = 0, runs = 0;

  std::string_view name() const override { return "counting"; }
  Result<> submit_send(const TensorView& tensor, Rank rank, std::optional<TaskId> id) override {
    ++sends;
    return inner_.submit_send(tensor, rank, id);
  }
  Result<> submit_recv(const TensorView& tensor, Rank rank, std::optional<TaskId> id) override {
    ++recvs;
    return inner_.submit_recv(tensor, rank, id);
  }
  Result<> run() override {
    ++runs;
    return inner_.run();
  }
  void close() override { inner_.close(); }

 private:
  CopyService& inner_;
};

TEST(SwapModelWeights, takes_a_service_that_a_user_has_written) {
  run_job(disjoint(), [](SwapRank& me, RankEnds& ends) {
    TransportCopyService inner(*ends.transport, *ends.control, 60);
    CountingService service(inner);
    for (std::uint64_t seed : {1U, 2U}) expect_swap(me, seed, &service);
    const ReshardPlan& plan = *me.context->find_plan(key_of(me));
    EXPECT_EQ(service.sends, 2 * plan.send_ops.size());
    EXPECT_EQ(service.recvs, 2 * plan.recv_ops.size());
    EXPECT_EQ(service.runs, 2U);
    EXPECT_EQ(me.context->num_services(), 0U) << "it is the caller's";
  });
}

TEST(SwapModelWeights, refuses_backends_that_do_not_work_and_stays_usable) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds&) {
    expect_error(me.swap("smoke"), Code::invalid_argument, {"unknown backend 'smoke'"});
    expect_error(me.swap("nvshmem"), Code::unsupported, {"backend 'nvshmem'"});
    expect_error(me.swap(static_cast<CopyService*>(nullptr)), Code::invalid_argument);
    expect_swap(me, 1);
  });
}

TEST(SwapModelWeights, trouble_on_one_rank_is_an_error_on_all_and_leaves_the_group_usable) {
  run_job(disjoint(), [](SwapRank& me, RankEnds& ends) {
    std::optional<ProcessGroups> kept;
    if (ends.rank() == Rank(2)) kept = std::exchange(me.target->module().pg_collection, {});
    expect_error(me.swap("inproc"), Code::invalid_argument,
                 {"rank 2: target model has no pg_collection"});
    if (kept) me.target->module().pg_collection = kept;
    expect_swap(me, 1);
  });
}

TEST(SwapModelWeights, ranks_that_call_differently_are_told) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    const auto done = ends.rank() == Rank(0)
                          ? me.swap("inproc")
                          : prepare_swap_model_weights(me.src(), me.tgt(), {}, *me.context);
    expect_error(
        done, Code::invalid_argument,
        {"rank 0 calls swap_model_weights by 'inproc'", "rank 1 calls prepare_swap_model_weights"});
  });
}

TEST(SwapModelWeights, a_parameter_without_source_is_an_error_that_names_it) {
  run_job(disjoint(), [](SwapRank& me, RankEnds&) {
    std::array<std::byte, 8> memory{};
    if (me.target) {
      ASSERT_TRUE(me.target->module().submodule("decoder").register_parameter(
          "orphan", *tensor_view(memory, DType::bf16, {4})));
    }
    expect_error(me.swap("inproc"), Code::not_found, {"decoder.orphan", "rank 2"});
  });
}

// refit: "dst_rank_offset (src_rank_offset /) - Offsets applied to local process group ranks"
TEST(SwapModelWeights, offsets_make_ranks_of_independent_worlds_unique) {
  run_job(disjoint(), [](SwapRank& me, RankEnds&) {
    if (me.target) {
      EXPECT_EQ((*me.target->module().pg_collection->tp)[0], Rank(0));
    }
    expect_swap(me, 1);
    me.arguments.dst_rank_offset = 0;  // then the target's groups lack the target's ranks
    const auto wrong = me.swap("inproc");
    EXPECT_FALSE(wrong);
  });
}

// refit, reshard_model_weights: "(src_model, target_model): Both models present (collocated mode)",
// "(src_model, None): Source rank - only sends data", "(None, target_model): Destination rank -
// only receives data", "(None, None): Idle rank - participates in collectives but has no transfers"
TEST(ReshardModelWeights, takes_ranks_with_both_models_one_or_none) {
  // Ranks 0 to 3 have the source, 3 and 4 the target, 5 and 6 nothing.
  const SwapLayouts all{"", tiny_dense(), sized(2, "pp=2"), sized(2, "offset=3"), 7};
  run_job(all, [](SwapRank& me, RankEnds& ends) {
    const int r = ends.rank().value();
    EXPECT_EQ(me.source != nullptr, r < 4);
    EXPECT_EQ(me.target != nullptr, r == 3 || r == 4);
    CopyService* service = *get_or_create_service("inproc", nullptr, *me.context);
    me.begin(1);
    ASSERT_EQ(
        outcome(reshard_model_weights(me.src(), me.tgt(), *service, me.arguments, *me.context)),
        "");
    EXPECT_EQ(me.wrong(1), "");
    const ReshardPlan& plan = *me.context->find_plan(key_of(me));
    EXPECT_EQ(plan.send_ops.empty(), me.source == nullptr);
    EXPECT_EQ(plan.recv_ops.empty(), me.target == nullptr);
  });
}

TEST(SwapModelWeights, of_no_model_at_all_is_nothing) {
  const SwapLayouts far{"", tiny_dense(), sized(1, "offset=4"), sized(1, "offset=4"), 2};
  run_job(far, [](SwapRank& me, RankEnds&) {
    EXPECT_EQ(me.source, nullptr);
    EXPECT_EQ(outcome(me.swap("inproc")), "");
  });
}

// "with several destination pools one pass per pool"
TEST(SwapModelWeights, fills_several_pools_one_after_the_other) {
  // A trainer on ranks 0 and 1, a pool on rank 2 and one on ranks 3 and 4.
  const ModelConfig config = tiny_dense();
  const auto ended = run_group_as_threads<InprocGroup>(5, [&](RankEnds& ends) {
    const bool second = ends.rank().value() >= 3;
    SwapRank me({"", config, sized(2, ""), second ? sized(2, "offset=3") : sized(1, "offset=2"), 5},
                ends);
    me.arguments.num_dst_pools = 2;
    me.arguments.dst_pool_index = second ? 1 : 0;
    for (std::uint64_t seed : {1U, 2U}) expect_swap(me, seed);
    EXPECT_EQ(me.context->plans_built(), 2U);
    CopyService* service = *get_or_create_service("inproc", nullptr, *me.context);
    expect_swap(me, 3, service);
    EXPECT_EQ(me.context->plans_built(), 2U);
    me.arguments.dst_pool_index = 2;
    EXPECT_FALSE(me.swap("inproc"));
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    clear_all_caches(*me.context);
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(SwapModelWeights, changed_addresses_get_a_new_session_and_no_new_plan) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    expect_swap(me, 1);
    OwnedTensor moved;
    if (ends.rank() == Rank(0)) {
      Tensor& t =
          **get_refit_tensor_dict(me.target->module())->find("embedding.word_embeddings.weight");
      moved = *make_tensor(t.view.dtype, t.view.shape);
      t.view = moved.view;
    }
    expect_swap(me, 2);
    EXPECT_EQ(me.context->plans_built(), 1U);
    EXPECT_EQ(me.context->sessions_prepared(), 2U);
  });
}

TEST(SwapModelWeights, a_changed_model_gets_a_new_plan_and_its_old_one_is_dropped) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds&) {
    expect_swap(me, 1);
    const OwnedTensor from = *make_tensor(DType::u8, {3}), to = *make_tensor(DType::u8, {3});
    std::ranges::fill(bytes_of(from.view), std::byte{7});
    ASSERT_TRUE(me.source->module().register_parameter("late", from.view));
    invalidate_refit_tensor_cache(me.source->module());
    if (me.target) {
      ASSERT_TRUE(me.target->module().register_parameter("late", to.view));
      invalidate_refit_tensor_cache(me.target->module());
    }
    me.source->fill({OracleKind::bits, 2});
    ASSERT_EQ(outcome(me.swap("inproc")), "");
    EXPECT_EQ(me.wrong(2), "");
    EXPECT_EQ(to.view.data[2], std::byte{me.target ? std::uint8_t{7} : std::uint8_t{0}});
    EXPECT_EQ(me.context->num_plans(), 1U);
    EXPECT_EQ(me.context->plans_built(), 2U);
  });
}

TEST(SwapModelWeights, by_operations_refuses_values_of_another_dtype_and_by_name_converts_them) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds& ends) {
    const std::string name = "decoder.final_layernorm.weight";
    OwnedTensor wide;
    if (me.target) {
      Tensor& t = **get_refit_tensor_dict(me.target->module())->find(name);
      wide = *make_tensor(DType::f32, t.view.shape);
      t.view = wide.view;
    }
    me.source->fill({OracleKind::weights, 1});
    ASSERT_EQ(outcome(me.swap("inproc")), "");
    EXPECT_EQ(me.target ? me.target->wrong({OracleKind::weights, 1}, {name}) : "", "");
    if (me.target) {
      float first = 0;
      std::memcpy(&first, wide.view.data, 4);
      EXPECT_NE(first, 0);
    }
    CopyService* service = *get_or_create_service("inproc", nullptr, *me.context);
    expect_error(me.swap(service), ends.rank() == Rank(0) ? Code::invalid_argument : Code::aborted,
                 {name, "BF16 at the source but F32 here"});
  });
}

TEST(ModuleUnderTest, sees_values_that_are_wrong) {
  run_job(disjoint(), [](SwapRank& me, RankEnds&) {
    expect_swap(me, 1);
    if (!me.target) return;
    EXPECT_THAT(me.wrong(2), HasSubstr("want"));
    for (const NamedTensor& t : get_refit_tensor_dict(me.target->module())->items()) {
      t.tensor->view.data[0] ^= std::byte{1};
      EXPECT_THAT(me.wrong(1), HasSubstr(t.name));
      t.tensor->view.data[0] ^= std::byte{1};
    }
    EXPECT_EQ(me.wrong(1), "");
  });
}

TEST(DefaultContext, is_one_and_needs_a_world) {
  EXPECT_EQ(&default_context(), &default_context());
  EXPECT_FALSE(swap_model_weights(nullptr, nullptr, "shm"));
  clear_all_caches();
}

}  // namespace
}  // namespace reshard::megatron
