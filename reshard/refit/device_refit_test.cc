// SPDX-License-Identifier: Apache-2.0
// Protects: a refit on one GPU puts every element where the layouts say, in one launch if no values
// are converted, and refuses memory that the GPU cannot reach.
#include "reshard/refit/device_refit.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "reshard/cuda/emulated_gpu_testutil.h"
#include "reshard/cuda/gpu_testutil.h"
#include "reshard/exec/device/device_tensors.h"
#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/refit_rank_testutil.h"
#include "reshard/exec/value_oracle_testutil.h"
#include "reshard/model/random_layout_testutil.h"
#include "reshard/plan/conversions.h"
#include "reshard/refit/session/partial_testutil.h"
#include "reshard/refit/session/quantised_suite_testutil.h"

namespace reshard {
namespace {

/// The tensors of all ranks of both sides on a GPU, with a source that is filled.
struct OnGpu {
  explicit OnGpu(const Planner& p) : planner(p) {
    fill_values(host_source);
    EXPECT_EQ(outcome(source.copy_from(host_source, stream)), "");
    EXPECT_EQ(outcome(target.copy_from(host_target, stream)), "");
  }
  static DeviceTensors on(const std::shared_ptr<const cuda::Device>& gpu,
                          const std::shared_ptr<const ModelLayout>& layout) {
    return DeviceTensors::allocate(layout, layout->ranks().members(), gpu).value();
  }
  Result<DeviceRefit> prepare(const DeviceRefitOptions& options = {}) const {
    return DeviceRefit::prepare({.layout = planner.shared_source(), .buffers = &source.buffers()},
                                {.layout = planner.shared_target(), .buffers = &target.buffers()},
                                gpu, options);
  }
  /// The same from the plan itself.
  Result<DeviceRefit> prepare_plan(const DeviceRefitOptions& options = {}) const {
    return DeviceRefit::prepare(planner, source.buffers(), target.buffers(), gpu, options);
  }
  /// Elements of the target that are wrong. Waits for the stream.
  Index count_wrong() {
    EXPECT_EQ(outcome(target.copy_to(host_target, stream)), "");
    EXPECT_EQ(outcome(stream.synchronize()), "");
    return count_wrong_values(planner, host_target);
  }

  const Planner& planner;
  std::shared_ptr<const cuda::Device> gpu = cuda::gpu_under_test();
  cuda::Stream stream = cuda::Stream::make(gpu).value();
  RankBuffers host_source = allocate_all(planner.shared_source()),
              host_target = allocate_all(planner.shared_target());
  DeviceTensors source = on(gpu, planner.shared_source()),
                target = on(gpu, planner.shared_target());
};

/// The launches of a refit: one, and one for each pair of dtypes of values that are converted eight
/// at a time, and for those that are not.
std::size_t most_launches(const Planner& planner) {
  std::set<std::pair<DType, DType>> pairs;
  for (const ConversionUse& use : conversions_of(planner))
    pairs.emplace(use.conversion.from.dtype, use.conversion.to.dtype);
  return pairs.empty() ? 1 : pairs.size() + 2;
}

RC_GTEST_PROP(DeviceRefit, puts_and_converts_every_element, ()) {
  const auto model = random_model();
  const Planner planner = *Planner::make(random_layout(model, RandomForms::any),
                                         random_layout(model, RandomForms::any));
  OnGpu on(planner);
  const DeviceRefitOptions options{.most_blocks = *rc::gen::inRange(0, 3)};
  const auto refit = *rc::gen::arbitrary<bool>() ? on.prepare(options) : on.prepare_plan(options);
  RC_ASSERT(refit.has_value());
  RC_ASSERT(refit->num_launches() <= most_launches(planner));
  RC_ASSERT(refit->launch(on.stream).has_value());
  RC_ASSERT(on.count_wrong() == 0);
}

class DeviceRefitOf : public testing::TestWithParam<RefitLayouts> {};

TEST_P(DeviceRefitOf, puts_every_element_in_place_again_and_again) {
  const Planner planner = planner_of(GetParam());
  OnGpu on(planner);
  const auto refit = on.prepare();
  ASSERT_EQ(outcome(refit), "");
  EXPECT_LE(refit->num_launches(), most_launches(planner));
  for (int i = 0; i < 2; ++i) {
    for (const Rank r : on.target.buffers().ranks())
      for (const auto memory : on.target.buffers().memory(r))
        ASSERT_EQ(outcome(on.stream.fill(memory.data(), std::byte{0x5a},
                                         static_cast<Index>(memory.size()))),
                  "");
    cuda::emulated_gpu().calls.clear();
    ASSERT_EQ(outcome(refit->launch(on.stream)), "");
    for (const auto& [name, times] : cuda::emulated_gpu().calls)
      EXPECT_TRUE(name == "cuLaunchKernel" || name.starts_with("cuCtx")) << name << times;
    EXPECT_EQ(on.count_wrong(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceRefitOf, testing::ValuesIn(refit_layouts()),
                         [](const auto& given) { return given.param.name; });

class QuantisedDeviceRefit : public testing::TestWithParam<quantised::Case> {};
INSTANTIATE_TEST_SUITE_P(Formats, QuantisedDeviceRefit, testing::ValuesIn(quantised::cases()),
                         [](const auto& given) { return given.param.name; });

TEST_P(QuantisedDeviceRefit, holds_what_the_oracle_says) {
  quantised::Job job(GetParam());
  const auto gpu = cuda::gpu_under_test();
  const auto stream = cuda::Stream::make(gpu).value();
  const auto all = [&](const RankBuffers& like) {
    return DeviceTensors::allocate(like.shared_layout(), like.ranks(), gpu).value();
  };
  const DeviceTensors from = all(*job.source.stored), to = all(*job.target.stored);
  const RankBuffers result = allocate_all(job.target.stored->shared_layout());
  ASSERT_EQ(outcome(to.copy_from(result, stream)), "");  // Zeros.
  SessionSide source = job.source.side(), target = job.target.side();
  source.buffers = &from.buffers();
  target.buffers = &to.buffers();
  const auto refit = DeviceRefit::prepare(source, target, gpu, {.between_bytes = 1 << 20});
  ASSERT_EQ(outcome(refit), "");
  for (std::int64_t version = 1; version <= 2; ++version) {
    job.fill(version);
    ASSERT_EQ(outcome(from.copy_from(*job.source.stored, stream)), "");
    ASSERT_EQ(outcome(refit->launch(stream)), "");
    ASSERT_EQ(outcome(to.copy_to(result, stream)), "");
    ASSERT_EQ(outcome(stream.synchronize()), "");
    for (const Rank r : result.ranks())
      EXPECT_EQ(different_bytes(result, *job.target.stored, r), 0) << "rank " << r.value();
  }
}

TEST_P(QuantisedDeviceRefit, leaves_what_is_not_delivered_as_it_is) {
  if (!GetParam().from_format.empty()) GTEST_SKIP() << "its source cannot lack a tensor";
  const auto gpu = cuda::gpu_under_test();
  const auto stream = cuda::Stream::make(gpu).value();
  constexpr std::byte kBefore{0xa5};
  int refitted = 0;
  for (const quantised::Ignored& ignored : quantised::ignored_parts()) {
    quantised::PartialJob job(GetParam(), ignored);
    job.whole.fill(1);
    const RankBuffers part = allocate_all(job.source),
                      result = allocate_all(job.whole.target.stored->shared_layout());
    quantised::copy_part(*job.whole.source.stored, part);
    quantised::fill_bytes(result, kBefore);
    const auto all = [&](const RankBuffers& like) {
      return DeviceTensors::allocate(like.shared_layout(), like.ranks(), gpu).value();
    };
    const DeviceTensors from = all(part), to = all(result);
    ASSERT_EQ(outcome(from.copy_from(part, stream)), "");
    ASSERT_EQ(outcome(to.copy_from(result, stream)), "");
    SessionSide target = job.whole.target.side();
    target.buffers = &to.buffers();
    const auto refit = DeviceRefit::prepare({.layout = job.source, .buffers = &from.buffers()},
                                            target, gpu, {.ignore = job.names});
    if (!refit) {
      EXPECT_NE(refit.error().message.find("is not, but both have one"), std::string::npos)
          << refit.error().message;
      continue;
    }
    ++refitted;
    ASSERT_EQ(outcome(refit->launch(stream)), "");
    ASSERT_EQ(outcome(to.copy_to(result, stream)), "");
    ASSERT_EQ(outcome(stream.synchronize()), "");
    EXPECT_EQ(quantised::wrong_after_part(job.whole.target, result, kBefore, job.delivered,
                                          result.ranks()),
              0)
        << ignored.name;
  }
  EXPECT_GT(refitted, 0);
}

TEST(DeviceRefit, names_a_tensor_that_is_not_on_the_gpu) {
  const Planner planner = planner_of(refit_layouts()[0]);
  OnGpu on(planner);
  const auto refit = DeviceRefit::prepare(
      {.layout = planner.shared_source(), .buffers = &on.host_source},
      {.layout = planner.shared_target(), .buffers = &on.target.buffers()}, on.gpu);
  ASSERT_FALSE(refit);
  EXPECT_EQ(refit.error().code, Code::invalid_argument);
  EXPECT_NE(refit.error().message.find("is in host memory, not on GPU 0"), std::string::npos)
      << refit.error().message;
  const RankBuffers none(planner.shared_source());
  const auto missing = DeviceRefit::prepare(
      {.layout = planner.shared_source(), .buffers = &none},
      {.layout = planner.shared_target(), .buffers = &on.target.buffers()}, on.gpu);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("is not set"), std::string::npos);
}

TEST(DeviceTensors, memory_that_is_short_names_the_rank) {
  if (!cuda::is_emulated()) GTEST_SKIP() << "the emulated GPU only";
  const Planner planner = planner_of(refit_layouts()[0]);
  cuda::emulated_gpu().faults["cuMemAlloc"] = cuda::kOutOfMemory;
  const auto tensors = DeviceTensors::allocate(
      planner.shared_target(), planner.target().ranks().members(), cuda::gpu_under_test());
  ASSERT_FALSE(tensors);
  EXPECT_EQ(tensors.error().code, Code::io);
  EXPECT_TRUE(tensors.error().message.starts_with("weights of rank 0")) << tensors.error().message;
}

}  // namespace
}  // namespace reshard
