// SPDX-License-Identifier: Apache-2.0
// Protects: memory of a GPU is told from host memory, and a library finds the GPU current only
// while it is called.
#include "reshard/transport/gpu_pointer_query.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {
namespace {

constexpr int kInvalidValue = 1, kNoDevice = 100, kInvalidDevice = 101;

/// A driver with a process that sees two GPUs; a model, as only the calls matter here.
struct Machine {
  int num_gpus = 2, init = 0, retain = 0, push = 0;
  std::map<int, int> retained;
  std::vector<void*> current;
  std::map<std::uintptr_t, unsigned> types;
  std::map<std::uintptr_t, bool> managed;
};
Machine machine;

const GpuDriver kDriver{
    .cuInit = [](unsigned) { return machine.init; },
    .cuDeviceGetCount =
        [](int* count) {
          *count = machine.num_gpus;
          return 0;
        },
    .cuDeviceGet =
        [](int* device, int ordinal) {
          *device = 10 + ordinal;
          return ordinal >= 0 && ordinal < machine.num_gpus ? 0 : kInvalidDevice;
        },
    .cuDevicePrimaryCtxRetain =
        [](void** context, int device) {
          if (machine.retain == 0) *context = &machine.retained[device];
          if (machine.retain == 0) ++machine.retained[device];
          return machine.retain;
        },
    .cuDevicePrimaryCtxRelease = [](int device) { return --machine.retained[device], 0; },
    .cuCtxPushCurrent =
        [](void* context) {
          if (machine.push == 0) machine.current.push_back(context);
          return machine.push;
        },
    .cuCtxPopCurrent =
        [](void** context) {
          *context = machine.current.back();
          machine.current.pop_back();
          return 0;
        },
    .cuPointerGetAttribute =
        [](void* value, int attribute, unsigned long long at) {
          if (!machine.types.contains(at)) return kInvalidValue;
          // The driver writes an unsigned for the type, and a bool for "is managed".
          if (attribute == 2) *static_cast<unsigned*>(value) = machine.types[at];
          if (attribute == 8) *static_cast<bool*>(value) = machine.managed[at];
          return 0;
        },
};

class GpuMemories : public testing::Test {
 protected:
  GpuMemories() { machine = {}; }
};

TEST_F(GpuMemories, device_memory_is_told_from_host_pinned_and_unknown_memory) {
  const auto gpu = GpuPointerQuery::open(kDriver, 1);
  ASSERT_TRUE(gpu) << outcome(gpu);
  const char host = 0, pinned = 0, device = 0, managed = 0;
  const auto address = [](const char& at) { return reinterpret_cast<std::uintptr_t>(&at); };
  machine.types = {{address(pinned), 1U}, {address(device), 2U}, {address(managed), 2U}};
  machine.managed[address(managed)] = true;
  EXPECT_FALSE((*gpu)->contains(&host));
  EXPECT_FALSE((*gpu)->contains(&pinned));
  EXPECT_TRUE((*gpu)->contains(&device));
  EXPECT_TRUE((*gpu)->contains(&managed));
  EXPECT_FALSE((*gpu)->is_managed(&host));
  EXPECT_FALSE((*gpu)->is_managed(&device));
  EXPECT_TRUE((*gpu)->is_managed(&managed));
}

TEST_F(GpuMemories, a_gpu_is_current_in_its_scope_and_what_was_before_afterwards) {
  int before = 0;
  machine.current = {&before};
  const auto gpu = GpuPointerQuery::open(kDriver, 1);
  ASSERT_TRUE(gpu) << outcome(gpu);
  {
    const GpuPointerQuery::Current outer(gpu->get());
    EXPECT_EQ(machine.current.back(), &machine.retained[11]);
    const GpuPointerQuery::Current nothing(nullptr);
    EXPECT_EQ(machine.current.size(), 2U);
  }
  EXPECT_EQ(machine.current, std::vector<void*>{&before});
  machine.push = 4;
  {
    const GpuPointerQuery::Current failed(gpu->get());
  }
  EXPECT_EQ(machine.current, std::vector<void*>{&before});
}

TEST_F(GpuMemories, a_context_is_given_back) {
  {
    const auto gpu = GpuPointerQuery::open(kDriver, 0);
  }
  EXPECT_EQ(machine.retained, (std::map<int, int>{{10, 0}}));
  machine.retain = 2;
  expect_error(GpuPointerQuery::open(kDriver, 0), Code::io,
               {"cuDevicePrimaryCtxRetain", "error 2"});
  EXPECT_EQ(machine.retained, (std::map<int, int>{{10, 0}}));
}

TEST_F(GpuMemories, what_is_missing_is_named) {
  expect_error(GpuPointerQuery::open(kDriver, 2), Code::not_found, {"GPU 2"});
  machine.num_gpus = 0;
  expect_error(GpuPointerQuery::open(kDriver, 0), Code::unsupported, {"no GPU"});
  machine.init = kNoDevice;
  expect_error(GpuPointerQuery::open(kDriver, 0), Code::unsupported, {"no GPU"});
  machine.init = 3;
  expect_error(GpuPointerQuery::open(kDriver, 0), Code::io, {"cuInit", "error 3"});
}

TEST_F(GpuMemories, without_a_driver_there_is_none_and_no_error) {
  const auto none = GpuPointerQuery::open_if_any(-1);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
  if (GpuPointerQuery::unavailable_reason().empty()) GTEST_SKIP() << "this machine has a GPU";
  const auto absent = GpuPointerQuery::open_if_any(0);
  ASSERT_TRUE(absent) << outcome(absent);
  EXPECT_EQ(*absent, nullptr);
  expect_error(GpuPointerQuery::open(0), Code::unsupported,
               {GpuPointerQuery::unavailable_reason()});
}

}  // namespace
}  // namespace reshard
