// SPDX-License-Identifier: Apache-2.0
// Protects: what ranks hold in the memory of a GPU is fingerprinted there, with the host's result,
// and only the sums come to the host.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/refit_rank_testutil.h"
#include "reshard/exec/verify/fingerprint_verifier.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/rank_threads_testutil.h"

namespace reshard {
namespace {

/// The memory of all ranks of a layout, in host memory and the same in that of a GPU.
struct Held {
  explicit Held(const std::shared_ptr<const ModelLayout>& layout) : host(allocate_all(layout)) {
    fill_values(host);
    EXPECT_EQ(outcome(write()), "");
  }
  /// Gives the GPU's default stream a copy of `host`, and does not wait for it.
  Result<> write() const { return device.copy_from(host, cuda::Stream::borrow(gpu, nullptr)); }
  const RankBuffers& on_gpu() const { return device.buffers(); }

  std::shared_ptr<const cuda::Device> gpu = cuda::gpu_under_test();
  RankBuffers host;
  DeviceTensors device = DeviceTensors::allocate(host.shared_layout(), host.ranks(), gpu).value();
};

std::string text_of(const ModelFingerprints& fingerprints) {
  std::string out = std::to_string(fingerprints.bytes) + " bytes\n";
  for (const auto& t : fingerprints.tensors)
    out += to_string(t.fingerprint) + " " + std::to_string(t.replicas) +
           (t.agree ? " agree" : " differ ") + t.disagreement + "\n";
  return out;
}

RC_GTEST_PROP(GpuFingerprints, equal_those_of_host_memory_in_any_form, ()) {
  const auto model = random_model();
  const Held held(random_layout(model, RandomForms::any));
  const auto forms = forms_of(*random_layout(model, RandomForms::any));
  for (const std::span<const StoredForm> in : {std::span<const StoredForm>(), std::span(forms)}) {
    const auto here = fingerprints(held.host, 1, {}, in),
               there = fingerprints(held.on_gpu(), 1, {}, in);
    RC_ASSERT(here.has_value());
    RC_ASSERT(there.has_value());
    RC_ASSERT(text_of(*there) == text_of(*here));
  }
}

TEST(GpuFingerprints, equal_those_of_host_memory_for_all_layout_tables) {
  for (const RefitLayouts& layouts : refit_layouts()) {
    const Planner planner = planner_of(layouts);
    const auto forms = forms_of(planner.target());
    for (const auto& layout : {planner.shared_source(), planner.shared_target()}) {
      const Held held(layout);
      const auto there = fingerprints(held.on_gpu(), 1, {}, forms);
      ASSERT_EQ(outcome(there), "");
      EXPECT_EQ(text_of(*there), text_of(*fingerprints(held.host, 1, {}, forms)))
          << layouts.name << ", " << layout->name();
    }
  }
}

TEST(GpuFingerprints, bring_only_sums_to_the_host_in_one_launch) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  for (const int tensors_of : {0, 4}) {
    const Held held(
        planner_of(refit_layouts()[static_cast<std::size_t>(tensors_of)]).shared_source());
    cuda::emulated_gpu().reset();
    const auto found = fingerprints(held.on_gpu());
    ASSERT_EQ(outcome(found), "");
    auto& gpu = cuda::emulated_gpu();
    EXPECT_EQ(gpu.calls["cuLaunchKernel"], 1);
    EXPECT_EQ(gpu.calls["cuMemcpyAsync"], 2);  // The table, and the sums.
    EXPECT_LT(gpu.copied_to_host, static_cast<std::size_t>(found->bytes) / 20);
    EXPECT_EQ(gpu.copied_to_host % sizeof(Fingerprint), 0U);
  }
}

TEST(GpuFingerprints, name_a_replica_that_differs_and_a_tensor_that_is_elsewhere) {
  const auto model = model_of(tiny_moe());
  Held held(layout_of("vllm:tp=2,replicas=3", model, tiny_moe()));
  const SlotId slot = held.host.layout().slots_of(Rank(4)).back();
  held.host.at(Rank(4), slot)[0] ^= std::byte{0x80};
  ASSERT_EQ(outcome(held.write()), "");
  const auto there = fingerprints(held.on_gpu());
  ASSERT_EQ(outcome(there), "");
  EXPECT_EQ(text_of(*there), text_of(*fingerprints(held.host)));
  EXPECT_NE(text_of(*there).find("rank 4 differs from rank 0"), std::string::npos);

  held.host.set_device(held.gpu);
  const auto elsewhere = fingerprints(held.host);
  ASSERT_FALSE(elsewhere);
  EXPECT_NE(elsewhere.error().message.find("is in host memory, not on GPU 0"), std::string::npos)
      << elsewhere.error().message;
}

TEST(GpuFingerprints, can_be_cancelled_and_report_failed_calls) {
  const Held held(planner_of(refit_layouts()[0]).shared_source());
  const auto cancelled =
      fingerprints(held.on_gpu(), 1, [](std::string_view, Index, Index) { return false; });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().message, "fingerprint: cancelled");
  if (!cuda::is_emulated()) return;
  for (const char* name :
       {"cuMemAlloc", "cuMemHostAlloc", "cuEventCreate", "cuLaunchKernel", "cuEventRecord"}) {
    cuda::emulated_gpu().faults[name] = cuda::kOutOfMemory;
    const auto failed = fingerprints(held.on_gpu());
    ASSERT_FALSE(failed) << name;
    EXPECT_NE(failed.error().message.find(name), std::string::npos) << failed.error().message;
  }
  EXPECT_EQ(outcome(fingerprints(held.on_gpu())), "");
}

/// One rank's part of what all hold.
RankBuffers gpu_part_of(const RankBuffers& all, Rank r) {
  RankBuffers own(all.shared_layout());
  own.set_device(all.device(), all.stream());
  for (const SlotId slot : all.layout().slots_of(r))
    EXPECT_TRUE(own.bind(r, slot, {all.at(r, slot), static_cast<std::size_t>(all.bytes(r, slot))}));
  return own;
}

TEST(GpuFingerprints, of_ranks_follow_their_streams_and_allocate_nothing_again) {
  const Planner planner = planner_of(refit_layouts()[0]);
  const Held held(planner.shared_source());
  auto group = *InprocGroup::create(4);
  const auto rank = [&](Rank r) -> Result<> {
    const auto transport = RESHARD_TRY(group.transport(r));
    const auto control = RESHARD_TRY(group.control(r));
    const RankBuffers own = gpu_part_of(held.on_gpu(), r);
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    auto verifier = RESHARD_TRY(
        FingerprintVerifier::prepare(held.host.layout(), &own, *transport, *control, deadline));
    for (int version = 0; version < 3; ++version) {
      RESHARD_TRY(control->barrier(deadline));
      if (r == Rank(0)) {
        held.host.at(Rank(1), own.layout().slots_of(Rank(1)).front())[0] ^= std::byte{1};
        RESHARD_TRY(held.write());
        cuda::emulated_gpu().reset();
      }
      RESHARD_TRY(control->barrier(deadline));
      const ModelFingerprints* found =
          RESHARD_TRY(verifier.run({.threads = 1, .deadline = deadline}));
      EXPECT_EQ(text_of(*found), text_of(*fingerprints(held.host, 1)));
      RESHARD_TRY(control->barrier(deadline));
      if (r == Rank(0) && cuda::is_emulated()) {
        auto calls = cuda::emulated_gpu().calls;
        for (const char* any : {"cuCtxPushCurrent", "cuCtxPopCurrent", "cuEventQuery"})
          calls.erase(any);
        EXPECT_EQ(calls, (std::map<std::string, int>{{"cuMemsetD8Async", 4},
                                                     {"cuLaunchKernel", 4},
                                                     {"cuMemcpyAsync", 4},
                                                     {"cuEventRecord", 4}}));
      }
      RESHARD_TRY(control->barrier(deadline));
    }
    return {};
  };
  EXPECT_EQ(outcome(run_ranks(4, rank)), "");
}

}  // namespace
}  // namespace reshard
