// SPDX-License-Identifier: Apache-2.0
// Protects: persistent buffers arrive in the source's dtype, which is gathered once.
#include <gtest/gtest.h>

#include <cstring>

#include "reshard/megatron/swap_testutil.h"
#include "reshard/transport/testing/forwarding_control_testutil.h"

namespace reshard::megatron {
namespace {

/// Counts collective calls.
class CountingControl final : public ForwardingControl {
 public:
  using ForwardingControl::ForwardingControl;
  int gathers = 0, barriers = 0;

  Result<std::vector<std::vector<std::byte>>> all_gather(std::span<const std::byte> mine,
                                                         Deadline deadline) override {
    ++gathers;
    return ForwardingControl::all_gather(mine, deadline);
  }
  Result<> barrier(Deadline deadline) override {
    ++barriers;
    return ForwardingControl::barrier(deadline);
  }
};

std::string expert_bias_of(Module& module) {
  for (const NamedBuffer& b : named_persistent_buffers(module))
    if (b.name == "expert_bias") return b.full_name;
  return "";
}

std::optional<DType> dtype_of(SwapRank& me) {
  if (!me.target) return std::nullopt;
  Module& module = me.target->module();
  return (*get_refit_tensor_dict(module)->find(expert_bias_of(module)))->view.dtype;
}

// refit: "Bring destination persistent-buffer dtypes into agreement with source."
TEST(HarmonizeBufferDtypes, replaces_the_targets_buffers_and_later_only_looks) {
  run_job(disjoint(), [](SwapRank& me, RankEnds& ends) {
    CountingControl control(*ends.control);
    const RefitGroup group{&control, ends.transport.get()};
    Module* src = me.source ? me.source->get() : nullptr;
    Module* tgt = me.target ? me.target->get() : nullptr;
    ReshardPlan plan;
    std::shared_ptr<const TensorDict> before;
    TensorPtr old;
    const std::string name = tgt ? expert_bias_of(*tgt) : "";
    if (tgt) {
      before = get_refit_tensor_dict(*tgt);
      old = *before->find(name);
      EXPECT_EQ(old->view.dtype, DType::bf16);
    }
    const auto replaced = harmonize_buffer_dtypes(plan, src, tgt, group);
    ASSERT_TRUE(replaced) << replaced.error().message;
    EXPECT_EQ(*replaced, tgt != nullptr);
    // "The canonical dtype map is collected once via all_gather_object and cached on the plan."
    EXPECT_EQ(control.gathers, 1);
    ASSERT_TRUE(plan.buffer_dtypes);
    EXPECT_FALSE(plan.buffer_dtypes->empty());
    if (tgt) {
      EXPECT_NE(get_refit_tensor_dict(*tgt), before) << "the tensor dict is made anew";
      const TensorPtr fresh = *get_refit_tensor_dict(*tgt)->find(name);
      EXPECT_EQ(fresh->view.dtype, DType::f32);
      const std::size_t dot = name.rfind('.');
      EXPECT_EQ(tgt->submodule(name.substr(0, dot)).buffer("expert_bias"), fresh)
          << "the module's attribute is the new tensor";
    }
    // "Subsequent refits reuse the cached map and only do the per-buffer dtype check / replacement
    // (no collective)."
    EXPECT_FALSE(*harmonize_buffer_dtypes(plan, src, tgt, group));
    if (tgt) {
      const std::size_t dot = name.rfind('.');
      ASSERT_TRUE(tgt->submodule(name.substr(0, dot)).replace_buffer("expert_bias", old));
      EXPECT_TRUE(*harmonize_buffer_dtypes(plan, src, tgt, group));
    }
    EXPECT_EQ(control.gathers, 1);
    EXPECT_EQ(control.barriers, 0);
  });
}

TEST(HarmonizeBufferDtypes, keeps_values_and_the_lowest_rank_decides) {
  const auto ended = run_group_as_threads<InprocGroup>(3, [](RankEnds& ends) {
    const RefitGroup group{ends.control.get(), nullptr};
    Module m;
    const int r = ends.rank().value();
    OwnedTensor memory = *make_tensor(r == 0 ? DType::f32 : DType::bf16, {2});
    const std::uint16_t one_and_half[2] = {0x3fc0, 0xbf80};
    if (r == 2) std::memcpy(memory.view.data, one_and_half, 4);
    ASSERT_TRUE(m.register_buffer("b", memory.view));
    ReshardPlan plan;
    ASSERT_TRUE(harmonize_buffer_dtypes(plan, r < 2 ? &m : nullptr, r == 2 ? &m : nullptr, group));
    EXPECT_EQ(plan.buffer_dtypes, (std::map<std::string, DType>{{"b", DType::f32}}));
    if (r != 2) return;
    float values[2];
    ASSERT_EQ(m.buffer("b")->view.dtype, DType::f32);
    std::memcpy(values, m.buffer("b")->view.data, 8);
    EXPECT_EQ(values[0], 1.5F);
    EXPECT_EQ(values[1], -1.0F);
  });
  EXPECT_EQ(outcome(ended), "");
}

// refit: "Some buffers are upcast to fp32 inside the trainer on first forward"
TEST(SwapModelWeights, notices_a_source_buffer_that_changes_its_dtype_between_refits) {
  SwapLayouts late = disjoint();
  run_job(late, [](SwapRank& me, RankEnds&) {
    std::vector<OwnedTensor> wide;
    std::vector<std::pair<NamedBuffer, TensorPtr>> grown;
    if (me.source) {
      Module& module = me.source->module();
      for (const NamedBuffer& b : named_persistent_buffers(module)) {
        grown.emplace_back(b, b.tensor);
        wide.push_back(*make_tensor(DType::bf16, b.tensor->view.shape));
        ASSERT_TRUE(
            b.parent->replace_buffer(b.name, std::make_shared<Tensor>(Tensor{wide.back().view})));
      }
      invalidate_refit_tensor_cache(module);
    }
    expect_swap(me, 1);
    EXPECT_EQ(dtype_of(me), me.target ? std::optional(DType::bf16) : std::nullopt);
    for (const auto& [b, tensor] : grown) ASSERT_TRUE(b.parent->replace_buffer(b.name, tensor));
    if (me.source) invalidate_refit_tensor_cache(me.source->module());
    expect_swap(me, 2);
    EXPECT_EQ(dtype_of(me), me.target ? std::optional(DType::f32) : std::nullopt);
    EXPECT_EQ(me.context->plans_built(), 2U);
  });
}

}  // namespace
}  // namespace reshard::megatron
