// SPDX-License-Identifier: Apache-2.0
// Protects: a refit between ranks puts every element in place on either path, all ranks take the
// same path, and an error that only one rank detects is an error on all.
#include "reshard/exec/rank_refit.h"

#include <gtest/gtest.h>

#include <thread>

#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/random_job_testutil.h"
#include "reshard/model/layout_builder.h"

namespace reshard {
namespace {

Result<> run_twice(const RandomJob& c, RankEnds& ends, Limit limit, const RankRefitOptions& options,
                   std::string_view path) {
  LimitedTransport transport(std::move(ends.transport), limit);
  auto refit = RESHARD_TRY(
      RankRefit::prepare(c.planner, &c.source, &c.target, transport, *ends.control, options));
  if (refit.path() != path)
    return fail(Code::corrupt, "took the path " + std::string(refit.path()));
  if (refit.staging_bytes() > options.staging_bytes)
    return fail(Code::corrupt, "staging above the cap");
  for (int i = 0; i < 2; ++i) RESHARD_TRY(refit.run());
  return ends.control->quiesce(patient());
}

void check_any(Limit limit, RefitPath asked, std::string_view path) {
  const RandomJob c;
  RankRefitOptions options;
  options.path = asked;
  options.staging_bytes = *rc::gen::element<Index>(32 << 10, 64 << 10, 1 << 20);
  options.in_place_bytes = *rc::gen::element<Index>(1, 16, 256, 64 << 10);
  options.threads = *rc::gen::inRange(1, 3);
  on_ranks(c.world, [&](RankEnds& ends) { return run_twice(c, ends, limit, options, path); });
  RC_ASSERT(!testing::Test::HasFailure());
  RC_ASSERT(count_wrong_elements(c.target) == 0);
}

RC_GTEST_PROP(RankRefit, puts_every_element_in_place_directly, ()) {
  check_any(Limit::none, RefitPath::automatic, "direct");
}
RC_GTEST_PROP(RankRefit, puts_every_element_in_place_by_get, ()) {
  check_any(Limit::no_address, RefitPath::direct, "direct");
}
RC_GTEST_PROP(RankRefit, puts_every_element_in_place_by_messages, ()) {
  check_any(Limit::none, RefitPath::message, "message");
}
RC_GTEST_PROP(RankRefit, puts_every_element_in_place_where_memory_is_registered, ()) {
  check_any(Limit::registers_too, RefitPath::automatic, "message");
}

/// One tensor of `bytes` bytes, whole on rank 0, wanted in two halves on ranks 0 and 1.
struct Pair {
  std::shared_ptr<ModelSpec> model = std::make_shared<ModelSpec>();
  std::shared_ptr<const ModelLayout> whole, halves;
  explicit Pair(Index bytes = 8) {
    EXPECT_TRUE(model->add("w", {bytes}, DType::u8));
    whole = layout(1);
    halves = layout(2);
  }
  std::shared_ptr<const ModelLayout> layout(int ranks) const {
    LayoutBuilder b("parts of " + std::to_string(ranks), model);
    const MeshId mesh = b.add_mesh(*Mesh::make({{"x", ranks}}, Rank(0)));
    b.add(Slot{.name = "w",
               .dtype = DType::u8,
               .mesh = mesh,
               .ranks = b.ranks_where(mesh, {}),
               .sections = {whole_tensor(*model, TensorId(0), {b.add_cut(cut_over(0))})}});
    return std::make_shared<const ModelLayout>(*std::move(b).finish());
  }
};

TEST(RankRefit, ranks_with_different_plans_all_get_an_error) {
  const Pair p;
  const Planner one = *Planner::make(p.whole, p.halves), other = *Planner::make(p.halves, p.whole);
  const RankBuffers a = allocate_all(p.whole), b = allocate_all(p.halves);
  on_ranks(2, [&](RankEnds& ends) -> Result<> {
    const bool first = ends.rank() == Rank(0);
    expect_error(RankRefit::prepare(first ? one : other, first ? &a : &b, first ? &b : &a,
                                    *ends.transport, *ends.control),
                 Code::invalid_argument, {"all ranks must pass equal"});
    return {};
  });
}

TEST(RankRefit, requests_that_do_not_fit_each_other_are_errors_on_all) {
  const Pair p;
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  on_ranks(3, [&](RankEnds& ends) -> Result<> {
    RankRefitOptions options;
    if (ends.rank() == Rank(2)) options.path = RefitPath::message;
    expect_error(
        RankRefit::prepare(planner, &source, &target, *ends.transport, *ends.control, options),
        Code::invalid_argument, {"'automatic'", "'message'", "all ranks must ask for the same"});
    // The group stays usable.
    options.path = RefitPath::message;
    if (ends.rank() == Rank(1)) options.staging_bytes = (Index{32} << 10) - 1;
    expect_error(
        RankRefit::prepare(planner, &source, &target, *ends.transport, *ends.control, options),
        Code::invalid_argument, {"staging of 32767 bytes is too small", "32768"});
    return ends.control->quiesce(patient());
  });
}

TEST(RankRefit, one_rank_that_cannot_open_memory_sends_all_to_messages) {
  const Pair p;
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  fill_elements(source);
  for (const Limit limit : {Limit::cannot_open, Limit::cannot_share, Limit::no_direct}) {
    const Rank weak(limit == Limit::cannot_share ? 0 : 1);
    on_ranks(3, [&](RankEnds& ends) -> Result<> {
      const Limit mine = ends.rank() == weak ? limit : Limit::none;
      LimitedTransport transport(std::move(ends.transport), mine);
      auto refit =
          RESHARD_TRY(RankRefit::prepare(planner, &source, &target, transport, *ends.control));
      EXPECT_EQ(refit.path(), "message");
      EXPECT_NE(refit.reason(), "");
      RESHARD_TRY(refit.run());
      return ends.control->quiesce(patient());
    });
    EXPECT_EQ(count_wrong_elements(target), 0);
  }
}

TEST(RankRefit, the_direct_path_where_it_cannot_be_is_an_error_on_all) {
  const Pair p;
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  on_ranks(3, [&](RankEnds& ends) -> Result<> {
    const Limit mine = ends.rank() == Rank(1) ? Limit::cannot_open : Limit::none;
    LimitedTransport transport(std::move(ends.transport), mine);
    RankRefitOptions options;
    options.path = RefitPath::direct;
    expect_error(RankRefit::prepare(planner, &source, &target, transport, *ends.control, options),
                 Code::unsupported, {"direct path", "rank 1", "a wall stands between"});
    return {};
  });
}

TEST(RankRefit, missing_memory_on_one_rank_is_an_error_on_all) {
  const Pair p;
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  for (const RefitPath path : {RefitPath::direct, RefitPath::message})
    for (const Rank bad : {Rank(0), Rank(1)})
      on_ranks(3, [&](RankEnds& ends) -> Result<> {
        const bool lacks = ends.rank() == bad;
        RankRefitOptions options;
        options.path = path;
        const auto refit = RankRefit::prepare(planner, lacks && bad == Rank(0) ? nullptr : &source,
                                              lacks && bad == Rank(1) ? nullptr : &target,
                                              *ends.transport, *ends.control, options);
        expect_error(refit, lacks ? Code::invalid_argument : Code::aborted, {"passed no buffers"});
        return {};
      });
}

TEST(RankRefit, a_plan_for_more_ranks_than_the_group_has_is_an_error) {
  const Pair p;
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  on_ranks(1, [&](RankEnds& ends) -> Result<> {
    expect_error(RankRefit::prepare(planner, &source, &target, *ends.transport, *ends.control),
                 Code::invalid_argument, {"the plan needs rank 1 but the group has 1 ranks"});
    return {};
  });
}

TEST(RankRefit, tells_the_group_what_it_delivered_and_counts_what_it_moved) {
  constexpr Index kBytes = Index{3} << 20;
  const Pair p(kBytes);
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  for (const RefitPath path : {RefitPath::direct, RefitPath::message})
    on_ranks(2, [&](RankEnds& ends) -> Result<> {
      RankRefitOptions options;
      options.path = path;
      Index last = 0;
      options.progress = [&](std::string_view, Index done, Index total) {
        EXPECT_LE(last, done);
        EXPECT_LE(done, total);
        last = done;
        return true;
      };
      auto refit = RESHARD_TRY(
          RankRefit::prepare(planner, &source, &target, *ends.transport, *ends.control, options));
      const RankReport report = RESHARD_TRY(refit.run());
      const bool first = ends.rank() == Rank(0);
      EXPECT_EQ(report.sent, first ? kBytes / 2 : 0);
      EXPECT_EQ(report.copied, first ? kBytes / 2 : 0);
      EXPECT_EQ(report.received, first ? 0 : kBytes / 2);
      EXPECT_EQ(report.bytes, kBytes / 2);
      EXPECT_GT(last, 0);
      RESHARD_TRY(ends.control->barrier(patient()));
      EXPECT_EQ(ends.control->reported(), kBytes);
      return ends.control->quiesce(patient());
    });
}

TEST(RankRefit, cancelling_on_one_rank_is_an_error_on_all) {
  const Pair p(Index{64} << 20);
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  for (const RefitPath path : {RefitPath::direct, RefitPath::message})
    on_ranks(3, [&](RankEnds& ends) -> Result<> {
      RankRefitOptions options;
      options.path = path;
      if (ends.rank() == Rank(1))
        options.progress = [](std::string_view, Index, Index) { return false; };
      auto refit = RESHARD_TRY(
          RankRefit::prepare(planner, &source, &target, *ends.transport, *ends.control, options));
      expect_error(refit.run(), Code::aborted, {"left targets undefined", "cancelled"});
      return {};
    });
}

TEST(RankRefit, a_rank_that_dies_between_runs_is_named_to_all) {
  const Pair p;
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  for (const RefitPath path : {RefitPath::direct, RefitPath::message})
    on_ranks(3, [&](RankEnds& ends) -> Result<> {
      RankRefitOptions options;
      options.path = path;
      auto refit = RESHARD_TRY(
          RankRefit::prepare(planner, &source, &target, *ends.transport, *ends.control, options));
      RESHARD_TRY(refit.run());
      if (ends.rank() == Rank(0)) {
        ends.transport->close();
        ends.control->close();
        return {};
      }
      expect_error(refit.run(), Code::aborted, {"left targets undefined", "rank 0"});
      return {};
    });
}

TEST(RankRefit, a_source_that_does_not_come_is_an_error_at_the_deadline) {
  const Pair p;
  const Planner planner = *Planner::make(p.whole, p.halves);
  const RankBuffers source = allocate_all(p.whole), target = allocate_all(p.halves);
  for (const RefitPath path : {RefitPath::direct, RefitPath::message})
    on_ranks(2, [&](RankEnds& ends) -> Result<> {
      RankRefitOptions options;
      options.path = path;
      options.seconds = 2;
      auto refit = RESHARD_TRY(
          RankRefit::prepare(planner, &source, &target, *ends.transport, *ends.control, options));
      if (ends.rank() == Rank(0)) {
        while (ends.control->status()) std::this_thread::yield();
        return ends.control->quiesce(patient());
      }
      expect_error(refit.run(), Code::deadline, {"left targets undefined"});
      return {};
    });
}

}  // namespace
}  // namespace reshard
