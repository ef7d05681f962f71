// SPDX-License-Identifier: Apache-2.0
// Protects: one function says which memory a refit may use, and every kind of refit asks it.
#include <gtest/gtest.h>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/in_process.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {
namespace {

struct Sides {
  std::shared_ptr<const ModelSpec> model = model_of(tiny_dense());
  std::shared_ptr<const ModelLayout> layout = layout_of("vllm:tp=2", model, tiny_dense());
  Planner planner = *Planner::make(layout, layout);
  RankBuffers source = allocate_all(layout), target = allocate_all(layout);
  RankBuffers back = allocate_all(layout);
  const std::vector<SlotId> slots = layout->slots_of(Rank(0));

  MemoryCheck::Sides all(std::optional<Rank> only = {}) const {
    return {&source, &target, &back, only};
  }
  const std::string& name(std::size_t i) const { return layout->slot(slots[i]).name; }
  std::span<std::byte> bytes(const RankBuffers& of, std::size_t i) const {
    return {of.at(Rank(0), slots[i]), static_cast<std::size_t>(of.bytes(Rank(0), slots[i]))};
  }
  /// Two slots of equal size.
  std::pair<std::size_t, std::size_t> alike() const {
    for (std::size_t i = 0; i < slots.size(); ++i)
      for (std::size_t k = i + 1; k < slots.size(); ++k)
        if (bytes(target, i).size() == bytes(target, k).size()) return {i, k};
    return {};
  }
};

TEST(MemoryCheck, takes_memory_of_its_own_for_each_tensor) {
  const Sides s;
  EXPECT_EQ(MemoryCheck().trouble(s.all()), "");
  EXPECT_EQ(MemoryCheck().trouble(s.all(Rank(1))), "");
  EXPECT_EQ(MemoryCheck().trouble({}), "");
}

TEST(MemoryCheck, names_a_target_that_may_not_be_written_as_often_as_it_is_asked) {
  Sides s;
  MemoryCheck check;
  EXPECT_EQ(check.trouble(s.all(Rank(0))), "");
  ASSERT_TRUE(s.target.bind_read_only(Rank(0), s.slots[1], s.bytes(s.target, 1)));
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(check.trouble(s.all(Rank(0))),
              "target tensor '" + s.name(1) + "': is read-only, but a refit writes it");
  EXPECT_EQ(check.trouble(s.all(Rank(1))), "");
  EXPECT_EQ(check.trouble(s.all()),
            "rank 0: target tensor '" + s.name(1) + "': is read-only, but a refit writes it");
  ASSERT_TRUE(s.target.bind(Rank(0), s.slots[1], s.bytes(s.target, 1)));
  EXPECT_EQ(check.trouble(s.all(Rank(0))), "");
}

TEST(MemoryCheck, names_both_tensors_that_share_a_byte) {
  Sides s;
  const auto [i, k] = s.alike();
  const auto expect = [&](const std::string& text) {
    MemoryCheck check;
    for (int times = 0; times < 2; ++times) EXPECT_EQ(check.trouble(s.all(Rank(0))), text);
  };
  ASSERT_TRUE(s.target.bind(Rank(0), s.slots[i], s.bytes(s.target, k)));
  const std::string text = MemoryCheck().trouble(s.all(Rank(0)));
  EXPECT_NE(text.find("shares memory with '"), std::string::npos) << text;
  expect(text);
  ASSERT_TRUE(s.target.bind(Rank(0), s.slots[i], s.bytes(s.source, k)));
  expect("target tensor '" + s.name(i) + "': shares memory with source tensor '" + s.name(k) +
         "'; each needs its own");
  ASSERT_TRUE(s.target.bind(Rank(0), s.slots[i], s.bytes(s.back, i)));
  const std::string twice = MemoryCheck().trouble(s.all(Rank(0)));
  EXPECT_NE(twice.find("shares memory with"), std::string::npos) << twice;
  expect(twice);
}

TEST(MemoryCheck, lets_sources_share_memory) {
  Sides s;
  const auto [i, k] = s.alike();
  ASSERT_TRUE(s.source.bind_read_only(Rank(0), s.slots[i], s.bytes(s.source, k)));
  EXPECT_EQ(MemoryCheck().trouble(s.all()), "");
}

TEST(MemoryCheck, finds_one_byte_below_a_tensor_that_spans_others) {
  Sides s;
  // A source that reaches over all of the target's first tensor, and one byte of the second.
  const auto [i, k] = s.alike();
  std::vector<std::byte> memory(2 * s.bytes(s.target, i).size());
  const std::span<std::byte> all(memory);
  const std::size_t n = s.bytes(s.target, i).size();
  ASSERT_TRUE(s.target.bind(Rank(0), s.slots[i], all.subspan(0, n)));
  ASSERT_TRUE(s.target.bind(Rank(0), s.slots[k], all.subspan(n, n)));
  EXPECT_EQ(MemoryCheck().trouble(s.all()), "");
  ASSERT_TRUE(s.target.bind(Rank(0), s.slots[k], all.subspan(n - 1, n)));
  EXPECT_NE(MemoryCheck().trouble(s.all()).find("shares memory with"), std::string::npos);
}

TEST(MemoryCheck, is_asked_by_every_refit) {
  Sides s;
  const auto [i, k] = s.alike();
  ASSERT_TRUE(s.target.bind(Rank(0), s.slots[i], s.bytes(s.source, k)));
  const std::string shares = "target tensor '" + s.name(i) + "': shares memory with source tensor";
  expect_error(InProcessRefit::prepare(s.planner, s.source, s.target), Code::invalid_argument,
               {"rank 0: " + shares});
  const auto ended = run_group_as_threads<InprocGroup>(2, [&](RankEnds& ends) {
    const auto made = RankRefit::prepare(s.planner, &s.source, &s.target, *ends.transport,
                                         *ends.control, RankRefitOptions{});
    ASSERT_FALSE(made);
    if (ends.rank() == Rank(0)) {
      EXPECT_NE(made.error().message.find(shares), std::string::npos);
    }
  });
  (void)ended;  // rank 0 has aborted the group
}

}  // namespace
}  // namespace reshard
