// SPDX-License-Identifier: Apache-2.0
// Protects: on the message path, work on source ranges runs before their bytes are sent, and work
// on target ranges once all their bytes have arrived; each item once, in any layout and chunking.
#include "reshard/exec/message/range_work.h"

#include <gtest/gtest.h>

#include <cstring>

#include "reshard/exec/random_job_testutil.h"
#include "reshard/exec/rank_refit_hooks.h"

namespace reshard {
namespace {

/// Copies ranges of a rank's local tensors, `step` bytes each, two to an item, from one memory to
/// another. `watched` is the refit's memory.
class Copies final : public RangeWork {
 public:
  Copies(const RankBuffers& from, const RankBuffers& to, const RankBuffers& watched, Rank me,
         Index step) {
    for (const SlotId slot : watched.layout().slots_of(me))
      for (Index at = 0; at < watched.bytes(me, slot); at += step) {
        const Index n = std::min(step, watched.bytes(me, slot) - at);
        ranges_.push_back({watched.at(me, slot) + at, n, ranges_.size() / 2});
        jobs_.push_back({from.at(me, slot) + at, to.at(me, slot) + at});
      }
    runs_.resize((ranges_.size() + 1) / 2);
  }
  std::size_t size() const override { return runs_.size(); }
  std::span<const ItemRange> ranges() const override { return ranges_; }
  void run(std::span<const std::size_t> items) override {
    for (const std::size_t item : items) {
      if (runs_[item]++ > 0) continue;
      for (std::size_t r = 2 * item; r < std::min(2 * item + 2, ranges_.size()); ++r)
        std::memcpy(jobs_[r].second, jobs_[r].first, static_cast<std::size_t>(ranges_[r].bytes));
    }
  }
  void restart() { std::ranges::fill(runs_, 0); }
  /// True when every item was run exactly once.
  bool all_once() const {
    return std::ranges::all_of(runs_, [](int n) { return n == 1; });
  }

 private:
  std::vector<ItemRange> ranges_;
  std::vector<std::pair<const std::byte*, std::byte*>> jobs_;
  std::vector<int> runs_;
};

struct Case : RandomJob {
  /// Bytes are copied from `origin` to the source before they are sent, and from the target to
  /// `final` after they have arrived.
  RankBuffers origin = allocate_all(from), final = allocate_all(to);
  Index step = *rc::gen::element<Index>(1, 8, 24, 4096);
  RankRefitOptions options;
  Case() {
    fill_elements(origin);
    options.path = RefitPath::message;
    options.staging_bytes = *rc::gen::element<Index>(32 << 10, 1 << 20);
    options.in_place_bytes = *rc::gen::element<Index>(1, 16, 64 << 10);
  }
};

Result<> run_twice(const Case& c, RankEnds& ends) {
  const Rank me = ends.transport->rank();
  const bool sends = c.from->ranks().contains(me), receives = c.to->ranks().contains(me);
  std::optional<Copies> before, after;
  if (sends) before.emplace(c.origin, c.source, c.source, me, c.step);
  if (receives) after.emplace(c.target, c.final, c.target, me, c.step);
  RankRefitHooks hooks;
  hooks.before = sends ? &*before : nullptr;
  hooks.after = receives ? &*after : nullptr;
  auto refit = RESHARD_TRY(RankRefit::prepare(c.planner, &c.source, &c.target, *ends.transport,
                                              *ends.control, c.options, hooks));
  for (int i = 0; i < 2; ++i) {
    if (sends) wipe(c.source, me, 0x33);
    if (receives) wipe(c.target, me, 0x44);
    if (receives) wipe(c.final, me, 0x55);
    if (sends) before->restart();
    if (receives) after->restart();
    RESHARD_TRY(refit.run());
    if (receives) {
      EXPECT_TRUE(after->all_once());
    }
  }
  return ends.control->quiesce(patient());
}

RC_GTEST_PROP(RangeWork, is_done_when_its_bytes_are_needed_or_have_come, ()) {
  const Case c;
  on_ranks(c.world, [&](RankEnds& ends) { return run_twice(c, ends); });
  RC_ASSERT(!testing::Test::HasFailure());
  RC_ASSERT(count_wrong_elements(c.target) == 0);
  RC_ASSERT(count_wrong_elements(c.final) == 0);
}

}  // namespace
}  // namespace reshard
