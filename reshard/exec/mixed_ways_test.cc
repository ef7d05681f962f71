// SPDX-License-Identifier: Apache-2.0
// Protects: in a group where some pairs of ranks read memory and others send messages, every
// element is put in place, and whatever happens to one rank is an error on all.
#include <gtest/gtest.h>

#include <thread>

#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/random_job_testutil.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/model/layout_builder.h"

namespace reshard {
namespace {

/// Which ways a group may take. A peer that is reached by get() only may be either.
struct WaysOfGroup {
  bool reaches = false, reads = false, messages = false, either = false;

  void add(Limit sender, Limit receiver) {
    const bool can =
        reaches_memory(sender) && reaches_memory(receiver) && sender != Limit::cannot_share;
    if (!can || receiver == Limit::cannot_open) {
      messages = true;
    } else {
      (receiver == Limit::no_address ? either : reads) = true;
    }
  }
  static bool reaches_memory(Limit limit) {
    return limit != Limit::no_direct && limit != Limit::registers_too;
  }
  bool allow(std::string_view path) const {
    if (!reaches) return path == "message";
    if (path == "direct") return !messages;
    if (path == "message") return !reads && (messages || either);
    return path == "mixed" && (reads || either) && (messages || either);
  }
};

WaysOfGroup ways_of(const RandomJob& job, const std::vector<Limit>& limits) {
  WaysOfGroup ways;
  for (int r = 0; r < job.world; ++r) {
    const Limit mine = limits[static_cast<std::size_t>(r)];
    ways.reaches |= WaysOfGroup::reaches_memory(mine);
    for (const Transfer& t : job.planner.rank_plan(Rank(r)).recvs)
      ways.add(limits[t.src.index()], mine);
  }
  return ways;
}

/// Prepares one refit and runs it twice; the target is overwritten before each run.
Result<> run_twice(const RandomJob& job, RankEnds& ends, Limit limit, int hosts,
                   const RankRefitOptions& options, const WaysOfGroup* ways) {
  const Rank me = ends.rank();
  LimitedTransport transport(std::move(ends.transport), limit, hosts);
  auto refit = RESHARD_TRY(
      RankRefit::prepare(job.planner, &job.source, &job.target, transport, *ends.control, options));
  if (ways != nullptr && !ways->allow(refit.path()))
    return fail(Code::corrupt, "took the path " + std::string(refit.path()));
  if (refit.path() == "direct" && !refit.reason().empty())
    return fail(Code::corrupt, "has a reason: " + refit.reason());
  if (refit.path() != "direct" && refit.reason().empty())
    return fail(Code::corrupt, "has no reason");
  if (refit.staging_bytes() > options.staging_bytes)
    return fail(Code::corrupt, "staging above the cap");
  for (int i = 0; i < 2; ++i) {
    if (job.to->ranks().contains(me)) wipe(job.target, me, 0xA5 + i);
    RESHARD_TRY(refit.run());
  }
  return ends.control->quiesce(patient());
}

RankRefitOptions random_options() {
  RankRefitOptions options;
  options.staging_bytes = *rc::gen::element<Index>(32 << 10, 64 << 10, 1 << 20);
  options.in_place_bytes = *rc::gen::element<Index>(1, 16, 256, 64 << 10);
  options.threads = *rc::gen::inRange(1, 4);
  return options;
}

RC_GTEST_PROP(MixedWays, put_every_element_in_place_whatever_each_rank_can, ()) {
  const RandomJob job;
  const auto limits = *rc::gen::container<std::vector<Limit>>(
      static_cast<std::size_t>(job.world),
      rc::gen::weightedElement<Limit>({{4, Limit::none},
                                       {1, Limit::no_address},
                                       {1, Limit::no_direct},
                                       {1, Limit::cannot_open},
                                       {1, Limit::cannot_share},
                                       {1, Limit::registers_too}}));
  const WaysOfGroup ways = ways_of(job, limits);
  const RankRefitOptions options = random_options();
  on_ranks(job.world, [&](RankEnds& ends) {
    return run_twice(job, ends, limits[ends.rank().index()], 1, options, &ways);
  });
  RC_ASSERT(!testing::Test::HasFailure());
  RC_ASSERT(count_wrong_elements(job.target) == 0);
}

RC_GTEST_PROP(MixedWays, put_every_element_in_place_between_hosts, ()) {
  const RandomJob job;
  const int hosts = *rc::gen::inRange(2, 4);
  const Limit limit = *rc::gen::element(Limit::none, Limit::no_address);
  const RankRefitOptions options = random_options();
  on_ranks(job.world,
           [&](RankEnds& ends) { return run_twice(job, ends, limit, hosts, options, nullptr); });
  RC_ASSERT(!testing::Test::HasFailure());
  RC_ASSERT(count_wrong_elements(job.target) == 0);
}

/// A square matrix of bytes: its rows are cut over four ranks, and wanted in columns; so each rank
/// gets a part from every other.
struct Turned {
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const ModelLayout> rows = layout(0), columns = layout(1);
  RankBuffers source = allocate_all(rows), target = allocate_all(columns);
  Planner planner = *Planner::make(rows, columns);
  explicit Turned(Index n) : model(square(n)) { fill_elements(source); }

 private:
  static std::shared_ptr<const ModelSpec> square(Index n) {
    auto model = std::make_shared<ModelSpec>();
    EXPECT_TRUE(model->add("w", {n, n}, DType::u8));
    return model;
  }
  std::shared_ptr<const ModelLayout> layout(int dim) const {
    LayoutBuilder b("cut along " + std::to_string(dim), model);
    const MeshId mesh = b.add_mesh(*Mesh::make({{"x", 4}}, Rank(0)));
    const CutId cut = b.add_cut(cut_over(0));
    b.add(Slot{.name = "w",
               .dtype = DType::u8,
               .mesh = mesh,
               .ranks = b.ranks_where(mesh, {}),
               .sections = {dim == 0 ? whole_tensor(*model, TensorId(0), {cut})
                                     : whole_tensor(*model, TensorId(0), {CutId(0), cut})}});
    return std::make_shared<const ModelLayout>(*std::move(b).finish());
  }
};

Result<RankRefit> prepare(const Turned& t, Transport& transport, ControlPlane& control,
                          const RankRefitOptions& options) {
  auto refit =
      RESHARD_TRY(RankRefit::prepare(t.planner, &t.source, &t.target, transport, control, options));
  EXPECT_EQ(refit.path(), "mixed");
  EXPECT_NE(refit.reason().find("a wall stands between"), std::string::npos) << refit.reason();
  return refit;
}

TEST(MixedWays, two_ranks_that_map_each_other_and_two_that_cannot) {
  for (const int threads : {1, 2, 3}) {
    const Turned t(1024);
    on_ranks(4, [&](RankEnds& ends) -> Result<> {
      RankRefitOptions options;
      options.threads = threads;
      options.staging_bytes = 64 << 10;
      const Limit mine = ends.rank() < Rank(2) ? Limit::none : Limit::no_direct;
      LimitedTransport transport(std::move(ends.transport), mine);
      auto refit = RESHARD_TRY(
          RankRefit::prepare(t.planner, &t.source, &t.target, transport, *ends.control, options));
      EXPECT_EQ(refit.path(), "mixed");
      const RankReport report = RESHARD_TRY(refit.run());
      EXPECT_EQ(report.bytes, 1024 * 1024 / 4);
      EXPECT_GT(report.messages, 0);
      EXPECT_LE(refit.staging_bytes(), options.staging_bytes);
      return ends.control->quiesce(patient());
    });
    EXPECT_EQ(count_wrong_elements(t.target), 0);
  }
}

TEST(MixedWays, are_an_error_on_all_where_the_direct_path_was_asked_for) {
  const Turned t(64);
  on_ranks(4, [&](RankEnds& ends) -> Result<> {
    LimitedTransport transport(std::move(ends.transport), Limit::none, 2);
    RankRefitOptions options;
    options.path = RefitPath::direct;
    expect_error(
        RankRefit::prepare(t.planner, &t.source, &t.target, transport, *ends.control, options),
        Code::unsupported, {"direct path", "a wall stands between"});
    return {};
  });
}

/// Runs body(refit, control, rank) on five ranks on two hosts, of which the last has no bytes.
template <class Body>
void on_two_hosts(Index n, const RankRefitOptions& options, Body&& body) {
  for (const int threads : {1, 2, 3}) {
    const Turned t(n);
    on_ranks(5, [&](RankEnds& ends) -> Result<> {
      RankRefitOptions mine = options;
      mine.threads = threads;
      if (ends.rank() != Rank(1)) mine.progress = nullptr;
      const Rank me = ends.rank();
      LimitedTransport transport(std::move(ends.transport), Limit::none, 2);
      RankRefit refit = RESHARD_TRY(prepare(t, transport, *ends.control, mine));
      return body(refit, transport, *ends.control, me);
    });
  }
}

TEST(MixedWays, cancelling_on_one_rank_is_an_error_on_all) {
  RankRefitOptions options;
  options.progress = [](std::string_view, Index, Index) { return false; };
  on_two_hosts(2048, options, [](RankRefit& refit, Transport&, ControlPlane&, Rank) -> Result<> {
    expect_error(refit.run(), Code::aborted, {"left targets undefined", "cancelled"});
    return {};
  });
}

TEST(MixedWays, a_rank_that_dies_between_runs_is_named_to_all) {
  const auto body = [](RankRefit& refit, Transport& transport, ControlPlane& control,
                       Rank me) -> Result<> {
    RESHARD_TRY(refit.run());
    if (me == Rank(2)) {
      transport.close();
      control.close();
      return {};
    }
    expect_error(refit.run(), Code::aborted, {"left targets undefined", "rank 2"});
    return {};
  };
  on_two_hosts(256, {}, body);
}

TEST(MixedWays, a_rank_that_aborts_instead_of_running_stops_all) {
  for (const Rank bad : {Rank(1), Rank(4)}) {
    const auto body = [&](RankRefit& refit, Transport&, ControlPlane& control,
                          Rank me) -> Result<> {
      if (me == bad) {
        control.abort("the operator stopped it");
        return {};
      }
      expect_error(refit.run(), Code::aborted,
                   {"left targets undefined", "the operator stopped it"});
      return {};
    };
    on_two_hosts(256, {}, body);
  }
}

TEST(MixedWays, a_rank_that_does_not_come_is_an_error_at_the_deadline) {
  RankRefitOptions options;
  options.seconds = 1;
  const auto body = [](RankRefit& refit, Transport&, ControlPlane& control, Rank me) -> Result<> {
    if (me == Rank(3)) {
      while (control.status()) std::this_thread::yield();
      return {};
    }
    const std::string said = outcome(refit.run());
    EXPECT_NE(said.find("left targets undefined"), std::string::npos) << said;
    return {};
  };
  on_two_hosts(256, options, body);
}

}  // namespace
}  // namespace reshard
