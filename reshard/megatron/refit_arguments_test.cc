// SPDX-License-Identifier: Apache-2.0
// Protects: arguments and caches behave as the source document core.resharding.refit says: groups,
// lists, transforms, reused services and tensor dicts, and collective calls.
#include <gtest/gtest.h>

#include <latch>

#include "reshard/megatron/swap_testutil.h"

namespace reshard::megatron {
namespace {

SwapLayouts tp2_to_tp1() { return {"", tiny_dense(), sized(2, ""), sized(1, ""), 2}; }
SwapLayouts disjoint() { return {"", tiny_dense(), sized(2, ""), sized(1, "offset=2"), 3}; }

// refit: "src_rank_offset: int 0", "dst_rank_offset: int 0", and so of the calls.
TEST(PlanCacheKey, offsets_are_0_by_default) {
  EXPECT_EQ(PlanCacheKey().src_rank_offset, 0);
  EXPECT_EQ(PlanCacheKey().dst_rank_offset, 0);
  EXPECT_EQ(RefitArguments().src_rank_offset, 0);
  EXPECT_EQ(RefitArguments().dst_rank_offset, 0);
  EXPECT_EQ(RefitArguments().group, nullptr);
  EXPECT_EQ(RefitArguments().transform, nullptr);
}

// refit: "memoized on the core": here it is read each time, so that groups that were exchanged are
// seen.
TEST(GetConfigTuple, sees_groups_that_were_exchanged) {
  const auto ranks = [](std::size_t n) { return std::make_shared<const std::vector<Rank>>(n); };
  Module m;
  m.pg_collection = ProcessGroups{ranks(2), ranks(1), ranks(1), ranks(4), ranks(1)};
  EXPECT_EQ(get_config_tuple(&m), (ConfigTuple{2, 1, 1, 4, 1}));
  m.pg_collection->tp = ranks(8);
  EXPECT_EQ(get_config_tuple(&m), (ConfigTuple{8, 1, 1, 4, 1}));
}

// refit: "This avoids expensive repeated allocations when swap_model_weights is called multiple
// times with the same backend."
TEST(GetOrCreateService, is_what_swap_model_weights_uses_each_time) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds&) {
    expect_swap(me, 1, "shm");
    EXPECT_EQ(me.context->num_services(), 1U);
    CopyService* service = *get_or_create_service("shm", nullptr, *me.context);
    for (std::uint64_t seed = 2; seed < 5; ++seed) expect_swap(me, seed, "shm");
    EXPECT_EQ(*get_or_create_service("shm", nullptr, *me.context), service);
    EXPECT_EQ(me.context->num_services(), 1U);
  });
}

/// Two groups of the same threads; body(its models, ends of the first, the second).
void run_with_second_group(
    const SwapLayouts& layouts,
    const std::function<void(SwapRank&, RankEnds&, const RefitGroup&)>& body) {
  InprocGroup second = *InprocGroup::create(layouts.ranks);
  run_job(layouts, [&](SwapRank& me, RankEnds& ends) {
    const auto control = *second.control(ends.rank());
    const auto transport = *second.transport(ends.rank());
    body(me, ends, {control.get(), transport.get()});
    EXPECT_EQ(outcome(control->quiesce(patient())), "");
    clear_all_caches(*me.context);
  });
}

// refit, get_or_create_service: "group - Optional process group".
TEST(GetOrCreateService, makes_one_for_each_group) {
  run_with_second_group(tp2_to_tp1(), [](SwapRank& me, RankEnds&, const RefitGroup& other) {
    CopyService* first = *get_or_create_service("inproc", nullptr, *me.context);
    CopyService* second = *get_or_create_service("inproc", &other, *me.context);
    EXPECT_NE(first, second);
    EXPECT_EQ(*get_or_create_service("inproc", &other, *me.context), second);
    EXPECT_EQ(*get_or_create_service("inproc", &me.group, *me.context), first);
  });
}

// refit, all calls: "group - Optional process group for collective communication."
TEST(SwapModelWeights, communicates_over_the_group_that_it_is_given) {
  run_with_second_group(disjoint(), [](SwapRank& me, RankEnds& ends, const RefitGroup& other) {
    // The context's own group is of no use any more.
    ends.control->abort("not this one");
    me.arguments.group = &other;
    ASSERT_EQ(outcome(prepare_swap_model_weights(me.src(), me.tgt(), me.arguments, *me.context)),
              "");
    for (std::uint64_t seed : {1U, 2U}) expect_swap(me, seed);
    CopyService* service = *get_or_create_service("inproc", &other, *me.context);
    me.begin(3);
    ASSERT_EQ(
        outcome(reshard_model_weights(me.src(), me.tgt(), *service, me.arguments, *me.context)),
        "");
    EXPECT_EQ(me.wrong(3), "");
    EXPECT_EQ(me.context->plans_built(), 1U);
  });
}

// refit: "Handles list-wrapped modules": in the calls themselves.
TEST(SwapModelWeights, takes_lists_of_one_module) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds&) {
    const auto list = [](const std::unique_ptr<ModuleUnderTest>& m) {
      return m ? ModelArgument(std::vector{m->get()}) : ModelArgument(nullptr);
    };
    const ModelArgument src = list(me.source), tgt = list(me.target);
    ASSERT_EQ(outcome(prepare_swap_model_weights(src, tgt, {}, *me.context)), "");
    me.begin(1);
    ASSERT_EQ(outcome(swap_model_weights(src, tgt, "inproc", {}, *me.context)), "");
    EXPECT_EQ(me.wrong(1), "");
    expect_swap(me, 2);
    EXPECT_EQ(me.context->plans_built(), 1U) << "a list of a module is the module";
  });
}

// Chunks of a virtual pipeline: where Python takes the first and loses the others.
TEST(SwapModelWeights, takes_the_chunks_of_a_virtual_pipeline) {
  const SwapLayouts layouts{"", tiny_dense(), sized(1, "pp=2,vpp=2"), sized(2, ""), 2};
  run_job(layouts, [](SwapRank& me, RankEnds& ends) {
    ASSERT_EQ(me.source->chunks().size(), 2U);
    ASSERT_EQ(outcome(prepare_swap_model_weights(me.src(), me.tgt(), {}, *me.context)), "");
    for (std::uint64_t seed : {1U, 2U}) expect_swap(me, seed);
    TransportCopyService service(*ends.transport, *ends.control, 60);
    expect_swap(me, 3, &service);
    EXPECT_EQ(me.context->plans_built(), 1U);
    EXPECT_EQ(me.context->sessions_prepared(), 1U);
    // A chunk that changes is noticed: another plan.
    Module& chunk = *me.source->chunks()[1];
    ASSERT_EQ(outcome(chunk.submodule("decoder.layers.0")
                          .register_buffer("seen", *tensor_view({}, DType::f32, {0}))),
              "");
    invalidate_refit_tensor_cache(chunk);
    expect_swap(me, 4);
    EXPECT_EQ(me.context->plans_built(), 2U);
  });
}

TEST(ModelArgument, lists_that_are_no_model_are_errors) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds&) {
    if (!me.source) return;
    Module& one = me.source->module();
    Module other;
    other.config = one.config;
    const auto error = [](std::vector<Module*> list) {
      return unwrap_model_cores(ModelArgument(std::move(list)), nullptr, nullptr).error().message;
    };
    EXPECT_EQ(error({}), "a list of modules is empty");
    EXPECT_EQ(error({&one, nullptr}), "module 1 of a list is null");
    EXPECT_EQ(error({&one, &one}), "chunk 1 of a model occurs twice in its list");
    EXPECT_EQ(error({&one, &other}),
              "source model's chunk 1 has no pg_collection, which a refit needs");
    other.pg_collection = one.pg_collection;
    other.pg_collection->tp = nullptr;
    EXPECT_EQ(error({&one, &other}), "chunk 1 of a model has other process groups than chunk 0");
  });
}

// refit: "subsequent calls reuse it without needing to inspect named_parameters() again."
TEST(SwapModelWeights, keeps_the_tensor_dict_that_prepare_made) {
  run_job(tp2_to_tp1(), [](SwapRank& me, RankEnds&) {
    ASSERT_EQ(outcome(prepare_swap_model_weights(me.src(), me.tgt(), {}, *me.context)), "");
    const auto dict = get_refit_tensor_dict(me.source->module());
    for (std::uint64_t seed : {1U, 2U}) expect_swap(me, seed);
    EXPECT_EQ(get_refit_tensor_dict(me.source->module()), dict);
  });
}

// refit: "All participating ranks must call this simultaneously": who calls alone gets an error in
// time, which names who did not.
TEST(SwapModelWeights, a_rank_that_calls_alone_is_told_who_did_not) {
  std::latch given_up(1);
  const auto ended = run_group_as_threads<InprocGroup>(2, [&](RankEnds& ends) {
    if (ends.rank() == Rank(1)) return given_up.wait();
    SwapRank me(tp2_to_tp1(), ends);
    me.context->set_defaults({.world = me.group, .seconds = 0.05});
    expect_error(prepare_swap_model_weights(me.src(), me.tgt(), {}, *me.context), Code::deadline,
                 {"rank 1"});
    given_up.count_down();
  });
  EXPECT_EQ(outcome(ended), "");
}

/// Sends each slice as it is, and counts; receives into memory of its own.
class Counted final : public ReshardTransform {
 public:
  explicit Counted(Module* target) : target_(target) {}
  int sent = 0, received = 0;

  bool should_transform(std::string_view) const override { return true; }
  Result<std::vector<WireTensor>> prepare_send(std::string_view name, const Box& src_slice,
                                               const Tensor& src_param, const Box& to) override {
    ++sent;
    return ReshardTransform::prepare_send(name, src_slice, src_param, to);
  }
  Result<std::vector<WireTensor>> prepare_recv(std::string_view name,
                                               const Box& dst_slice) override {
    const DType dtype = (*get_refit_tensor_dict(*target_)->find(name))->view.dtype;
    auto room = std::make_shared<OwnedTensor>(*make_tensor(dtype, dst_slice.shape()));
    return std::vector<WireTensor>{{room->view, room}};
  }
  Result<> finalize_recv(std::string_view name, const Box& dst_slice,
                         std::span<const WireTensor> buffers) override {
    ++received;
    const TensorPtr tensor = *get_refit_tensor_dict(*target_)->find(name);
    return copy(buffers[0].view, RESHARD_TRY(slice(tensor->view, dst_slice)));
  }

 private:
  Module* target_;
};

// refit, reshard_model_weights: "transform - Optional ReshardTransform for custom format
// conversion."
TEST(ReshardModelWeights, uses_the_transform_that_it_is_given_and_no_other) {
  run_job(disjoint(), [](SwapRank& me, RankEnds&) {
    CopyService* service = *get_or_create_service("inproc", nullptr, *me.context);
    const auto transform = std::make_shared<Counted>(me.target ? me.target->get() : nullptr);
    for (const bool given : {true, false}) {
      me.arguments.transform = given ? transform : nullptr;
      transform->sent = transform->received = 0;
      me.begin(given ? 1 : 2);
      ASSERT_EQ(
          outcome(reshard_model_weights(me.src(), me.tgt(), *service, me.arguments, *me.context)),
          "");
      EXPECT_EQ(me.wrong(given ? 1 : 2), "");
      EXPECT_EQ(transform->sent > 0, given && me.source);
      EXPECT_EQ(transform->received > 0, given && me.target);
    }
  });
}

/// Sends two tensors where the receiver makes room for one.
class TwoForOne final : public ReshardTransform {
 public:
  bool should_transform(std::string_view) const override { return true; }
  Result<std::vector<WireTensor>> prepare_send(std::string_view, const Box& src_slice,
                                               const Tensor& src_param, const Box&) override {
    const TensorView view = RESHARD_TRY(slice(src_param.view, src_slice));
    return std::vector<WireTensor>{{view}, {view}};
  }
  Result<std::vector<WireTensor>> prepare_recv(std::string_view, const Box& dst_slice) override {
    auto room = std::make_shared<OwnedTensor>(*make_tensor(DType::bf16, dst_slice.shape()));
    return std::vector<WireTensor>{{room->view, room}};
  }
  Result<> finalize_recv(std::string_view, const Box&, std::span<const WireTensor>) override {
    return {};
  }
};

// transforms: "The only constraint is that prepare_send and prepare_recv must return the same
// number of tensors for a given parameter so that send/recv pairs match."
TEST(SwapModelWeights, a_transform_whose_counts_differ_is_an_error) {
  run_job({"", tiny_dense(), sized(1, ""), sized(1, ""), 1}, [](SwapRank& me, RankEnds&) {
    me.arguments.transform = std::make_shared<TwoForOne>();
    expect_error(me.swap("inproc"), Code::invalid_argument, {"task id", "part 1"});
  });
  run_job({"", tiny_dense(), sized(1, ""), sized(1, "offset=1"), 2}, [](SwapRank& me, RankEnds&) {
    ASSERT_EQ(outcome(prepare_swap_model_weights(me.src(), me.tgt(), me.arguments, *me.context)),
              "");
    const PlanCacheKey key = build_plan_cache_key(*unwrap_model_cores(me.src(), me.tgt(), nullptr),
                                                  me.group, me.arguments);
    TransportCopyService service(*me.group.transport, *me.group.control, 0.1);
    TwoForOne transform;
    EXPECT_FALSE(execute_reshard_plan(
        *me.context->find_plan(key), me.source ? me.source->get() : nullptr,
        me.target ? me.target->get() : nullptr, service, me.group, &transform));
  });
}

}  // namespace
}  // namespace reshard::megatron
