// SPDX-License-Identifier: Apache-2.0
// Protects: a refit of unchanged modules walks no module: it allocates as much for a thousand
// tensors as for ten.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reshard/megatron/refit.h"
#include "reshard/refit/session/allocation_count_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard::megatron {
namespace {

/// A model of this many modules, each with a parameter and a persistent buffer.
struct Model {
  std::vector<OwnedTensor> memory;
  Module module;

  explicit Model(int modules) {
    const auto one = std::make_shared<const std::vector<Rank>>(1, Rank(0));
    module.config = TransformerConfig{};
    module.pg_collection = ProcessGroups{.tp = one, .pp = one, .ep = one, .dp = one};
    for (int i = 0; i < modules; ++i) {
      Module& layer = module.submodule("layers." + std::to_string(i));
      EXPECT_TRUE(layer.register_parameter("weight", tensor(DType::bf16)));
      EXPECT_TRUE(layer.register_buffer("bias", tensor(DType::f32)));
    }
  }
  const TensorView& tensor(DType dtype) {
    return memory.emplace_back(*make_tensor(dtype, {2, 2})).view;
  }
};

/// Allocations of the fifth refit of such models.
std::int64_t allocations(int modules) {
  std::int64_t count = -1;
  const auto ended = run_group_as_threads<InprocGroup>(1, [&](RankEnds& ends) {
    Model source(modules), target(modules);
    RefitContext context({.world = {ends.control.get(), ends.transport.get()}});
    for (int i = 0; i < 5; ++i) {
      const CountAllocations counted;
      ASSERT_EQ(outcome(swap_model_weights(source.module, target.module, "inproc", {}, context)),
                "");
      count = counted.here();
    }
    clear_all_caches(context);
  });
  EXPECT_EQ(outcome(ended), "");
  return count;
}

TEST(MegatronAllocations, of_an_unchanged_refit_do_not_grow_with_the_modules) {
  const std::int64_t few = allocations(10);
  EXPECT_GT(few, 0) << "the counter counts";
  EXPECT_EQ(allocations(1000), few);
}

}  // namespace
}  // namespace reshard::megatron
