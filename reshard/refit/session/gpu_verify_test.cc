// SPDX-License-Identifier: Apache-2.0
// Protects: sessions whose sides are in the memory of GPUs verify there: every change is found, and
// no tensor comes to the host.
#include <gtest/gtest.h>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/exec/refit_rank_testutil.h"
#include "reshard/refit/session.h"
#include "reshard/refit/session/quantised_suite_testutil.h"
#include "reshard/transform/fingerprint.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard {
namespace {

RefitRankSide side_of(const std::shared_ptr<const ModelLayout>& layout, Rank me) {
  const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
  return {*RankBuffers::allocate(layout, ranks), true};
}

SessionOptions verifying(RefitPath path) {
  SessionOptions options;
  options.verify = VerifyMode::always;
  options.refit.path = path;
  return options;
}

class GpuSessions : public testing::TestWithParam<RefitPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, GpuSessions,
                         testing::Values(RefitPath::direct, RefitPath::message));

/// Flips a bit of a target on the GPU: of the last rank that has one, in the last of its local
/// tensors of which all bytes belong to the model.
void change(const RefitRankSide& target, Rank me, const std::shared_ptr<const cuda::Device>& gpu) {
  const RankBuffers& on_gpu = *target.buffers();
  auto slots = on_gpu.layout().slots_of(me);
  while (on_gpu.layout().slot(slots.back()).padded) slots.pop_back();
  std::byte* const at = on_gpu.at(me, slots.back());
  auto bytes = cuda::read_from_gpu(gpu, at, 1);
  bytes[0] ^= std::byte{0x80};
  cuda::write_to_gpu(gpu, at, bytes);
}

TEST_P(GpuSessions, find_a_change_of_a_target_on_a_gpu) {
  for (const RefitLayouts& layouts : refit_layouts()) {
    const Planner planner = planner_of(layouts);
    const Rank last = planner.target().ranks().members().back();
    const auto ended = run_group_as_threads<InprocGroup>(layouts.ranks, [&](RankEnds& ends) {
      const Rank me = ends.rank();
      const RefitRankSide from = side_of(planner.shared_source(), me),
                          to = side_of(planner.shared_target(), me);
      fill_values(from.host);
      ASSERT_EQ(outcome(from.write()), "");
      ASSERT_EQ(outcome(to.write()), "");
      auto session = Session::prepare(
          *ends.transport, *ends.control,
          {.layout = planner.shared_source(), .buffers = from.buffers()},
          {.layout = planner.shared_target(), .buffers = to.buffers()}, verifying(GetParam()));
      ASSERT_EQ(outcome(session), "");
      for (const std::int64_t version : {1, 2}) {
        ASSERT_EQ(outcome(session->refit(version)), "");
        EXPECT_EQ(outcome(session->verify()), "");
        ASSERT_EQ(outcome(to.read()), "");
        EXPECT_EQ(count_wrong_values(planner, to.host), 0) << "rank " << me.value();
        ASSERT_TRUE(ends.control->barrier(patient()));
        if (me == last) change(to, me, cuda::gpu_under_test());
        ASSERT_TRUE(ends.control->barrier(patient()));
        const auto found = session->verify();
        ASSERT_FALSE(found) << layouts.name;
        EXPECT_EQ(found.error().code, Code::corrupt);
        EXPECT_NE(found.error().message.find("tensor '"), std::string::npos);
      }
      EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
    });
    EXPECT_EQ(outcome(ended), "") << layouts.name;
  }
}

/// A rank's session with a target that is quantised on the way, all in the memory of a GPU.
void verify_quantised(RankEnds& ends, quantised::Job& job, Rank last) {
  const Rank me = ends.rank();
  const RefitRankSide from(quantised::mine(*job.source.stored, me), true),
      to(quantised::mine(*job.target.stored, me), true);
  SessionSide source = job.source.side(), target = job.target.side();
  source.buffers = from.buffers();
  target.buffers = to.buffers();
  quantised::copy_to(*job.source.stored, from.host, me);
  ASSERT_EQ(outcome(from.write()), "");
  auto session = Session::prepare(*ends.transport, *ends.control, source, target,
                                  verifying(RefitPath::automatic));
  ASSERT_EQ(outcome(session), "");
  ASSERT_EQ(outcome(session->refit(1)), "");
  EXPECT_EQ(outcome(session->verify()), "");  // The first one prepares what verifies again.
  ASSERT_TRUE(ends.control->barrier(patient()));
  if (me == Rank(0)) cuda::emulated_gpu().reset();
  ASSERT_TRUE(ends.control->barrier(patient()));
  EXPECT_EQ(outcome(session->verify()), "");
  ASSERT_TRUE(ends.control->barrier(patient()));
  if (me == Rank(0) && cuda::is_emulated()) {
    auto& gpu = cuda::emulated_gpu();
    EXPECT_GT(gpu.calls["cuLaunchKernel"], 0);
    EXPECT_EQ(gpu.calls["cuLaunchKernel"], gpu.calls["cuMemcpyAsync"]);  // Each brings sums.
    EXPECT_LT(gpu.copied_to_host, std::size_t{1} << 16);
  }
  ASSERT_TRUE(ends.control->barrier(patient()));
  if (me == last) change(to, me, cuda::gpu_under_test());
  ASSERT_TRUE(ends.control->barrier(patient()));
  const auto found = session->verify();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::corrupt);
  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
}

TEST(GpuSession, finds_a_change_of_a_quantised_target_and_brings_no_tensor_to_the_host) {
  for (const quantised::Case& c : quantised::few_cases()) {
    quantised::Job job(c);
    job.fill(1);
    const Rank last = job.target.stored->layout().ranks().members().back();
    const auto ended = run_group_as_threads<InprocGroup>(
        c.ranks, [&](RankEnds& ends) { verify_quantised(ends, job, last); });
    EXPECT_EQ(outcome(ended), "") << c.name;
  }
}

TEST(GpuSession, brings_no_tensor_to_the_host_and_uses_two_launches_to_verify) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Planner planner = planner_of({"one_rank", wide_moe(), "hf:shards=1", "vllm:tp=1", 1});
  const auto ended = run_group_as_threads<InprocGroup>(1, [&](RankEnds& ends) {
    const RefitRankSide from = side_of(planner.shared_source(), Rank(0)),
                        to = side_of(planner.shared_target(), Rank(0));
    fill_values(from.host);
    ASSERT_EQ(outcome(from.write()), "");
    auto session = Session::prepare(*ends.transport, *ends.control,
                                    {.layout = planner.shared_source(), .buffers = from.buffers()},
                                    {.layout = planner.shared_target(), .buffers = to.buffers()},
                                    verifying(RefitPath::direct));
    ASSERT_EQ(outcome(session), "");
    ASSERT_EQ(outcome(session->refit(1)), "");  // The first one prepares what verifies.
    auto& gpu = cuda::emulated_gpu();
    gpu.reset();
    const auto report = session->refit(2);
    ASSERT_EQ(outcome(report), "");
    EXPECT_EQ(gpu.calls["cuLaunchKernel"], 3);  // The refit, its source, its target.
    EXPECT_EQ(gpu.calls["cuMemcpyAsync"], 2);
    EXPECT_EQ(gpu.calls["cuMemAlloc"] + gpu.calls["cuMemHostAlloc"], 0);
    const auto tensors = static_cast<std::size_t>(planner.source().model().size());
    EXPECT_GE(gpu.copied_to_host, 2 * tensors * sizeof(Fingerprint));
    EXPECT_LE(gpu.copied_to_host, 4 * tensors * sizeof(Fingerprint));
    gpu.reset();
    EXPECT_EQ(outcome(session->verify()), "");
    EXPECT_EQ(gpu.calls["cuLaunchKernel"], 1);  // The target: the commit recorded the source.
    EXPECT_EQ(gpu.calls["cuMemcpyAsync"], 1);
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

}  // namespace
}  // namespace reshard
