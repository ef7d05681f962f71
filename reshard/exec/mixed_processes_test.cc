// SPDX-License-Identifier: Apache-2.0
// Protects: a refit between four processes, of which two map each other's memory and two exchange
// messages with all, puts every element in place; and a stop, an abort, a deadline and a death are
// errors of all, after which no peer reads a rank's memory any more.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>

#include "reshard/exec/refit_rank_testutil.h"
#include "reshard/transport/shm/shm_testutil.h"
#include "reshard/transport/testing/fault_testutil.h"

namespace reshard {
namespace {

constexpr int kRanks = 4;
constexpr auto kWays = "mapped,readv,ring";
/// Bytes that no source has, so that targets show what was read too late.
constexpr int kPoison = 0xEE;

Planner four_ranks() {
  return planner_of({"four", wide_moe(), "megatron:tp=2,pp=2,ep=2,etp=1", "vllm:tp=4", kRanks});
}

/// Ranks 0 and 1 map each other's memory; 2 and 3 cannot.
RefitWay way_of(Rank rank) {
  RefitWay way{"mixed", rank < Rank(2) ? Limit::none : Limit::no_direct};
  way.staging_bytes = Index{32} << 10;
  way.in_place_bytes = 1024;
  way.takes = "mixed";
  way.shared = true;
  return way;
}

Index count_poisoned(const RankBuffers& target, Rank me) {
  Index count = 0;
  for (const auto memory : target.memory(me))
    for (std::size_t i = 0; i + 1 < memory.size(); i += 2)
      count += memory[i] == std::byte{kPoison} && memory[i + 1] == std::byte{kPoison};
  return count;
}

/// Ranks that wait for each other without their group, which has ended.
class Survivors {
 public:
  explicit Survivors(int count) : count_(count) {}
  void meet(Rank me) const {
    for (const ProcessEvent& event : arrived_) event.happen();
    arrived_[me.index()].wait(count_);
  }

 private:
  int count_;
  std::array<ProcessEvent, kRanks> arrived_;
};

/// A fault of one rank: what differs when it prepares, and what it does instead of running.
struct Trouble {
  Rank bad;
  double seconds = 60;
  bool dies = false;
  std::function<void(RankEnds&)> before_prepare = {};
  std::function<void(RankRefitOptions&)> options = {};
  std::function<void(ControlPlane&)> instead_of_run = {};
};

/// One rank's refit of its own memory. What its run returned; nothing for a rank that did not run.
std::optional<Result<>> refit_of(RefitRank& mine, const Planner& planner, ControlPlane& control,
                                 const Trouble& trouble) {
  const Rank me = control.rank();
  const RefitWay way = way_of(me);
  RankRefitOptions options;
  options.staging_bytes = way.staging_bytes;
  options.in_place_bytes = way.in_place_bytes;
  options.seconds = trouble.seconds;
  if (me == trouble.bad && trouble.options) trouble.options(options);
  auto refit = RankRefit::prepare(planner, mine.source.buffers(), mine.target.buffers(),
                                  mine.transport, control, options);
  if (!refit) return tl::unexpected(refit.error());
  EXPECT_EQ(refit->path(), "mixed") << refit->reason();
  if (me == trouble.bad && trouble.instead_of_run) {
    trouble.instead_of_run(control);
    // As its run would have done: it reads no peer's memory any more.
    EXPECT_EQ(outcome(control.quiesce(patient())), "");
    return std::nullopt;
  }
  auto done = refit->run();
  if (done) return Result<>();
  EXPECT_NE(done.error().message.find("left targets undefined"), std::string::npos)
      << done.error().message;
  return tl::unexpected(std::move(done).error());
}

/// Every rank that runs gets an error with one of these codes and with these parts. After its error
/// it overwrites its source; none of those new bytes reach the target of a peer.
void expect_errors_of_all(const Trouble& trouble, std::vector<Code> codes,
                          std::initializer_list<const char*> parts) {
  const Planner planner = four_ranks();
  const Survivors survivors(trouble.dies ? kRanks - 1 : kRanks);
  ProcessOptions options;
  if (trouble.dies) options.doomed = {trouble.bad.value()};
  const auto ended = shm_processes(kWays, options)(kRanks, [&](RankEnds& ends) {
    const Rank me = ends.rank();
    if (me == trouble.bad && trouble.before_prepare) trouble.before_prepare(ends);
    RefitRank mine(ends, planner, way_of(me));
    fill_values(mine.source.host);
    const auto done = refit_of(mine, planner, *ends.control, trouble);
    if (done) {
      EXPECT_FALSE(*done);
      const Error error = *done ? Error{} : done->error();
      EXPECT_NE(std::ranges::find(codes, error.code), codes.end()) << error.message;
      for (const char* part : parts)
        EXPECT_NE(error.message.find(part), std::string::npos) << error.message;
      EXPECT_EQ(error.message.find("may still be in use"), std::string::npos) << error.message;
      for (const auto memory : mine.source.host.memory(me))
        std::memset(memory.data(), kPoison, memory.size());
    }
    survivors.meet(me);
    mine.transport.close();
    EXPECT_EQ(count_poisoned(mine.target.host, me), 0);
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(MixedProcesses, put_every_element_in_place) {
  const Planner planner = four_ranks();
  const auto ended = shm_processes(kWays)(kRanks, [&](RankEnds& ends) {
    const RefitWay way = way_of(ends.rank());
    EXPECT_EQ(outcome(refit_as_rank(ends, planner, way)), "");
  });
  EXPECT_EQ(outcome(ended), "");
}

TEST(MixedProcesses, a_stop_of_one_rank_is_an_error_of_all) {
  for (const int bad : {0, 3}) {
    Trouble stop{.bad = Rank(bad)};
    stop.options = [](RankRefitOptions& options) {
      options.progress = [](std::string_view, Index, Index) { return false; };
    };
    expect_errors_of_all(stop, {Code::aborted}, {"cancelled"});
  }
}

TEST(MixedProcesses, a_rank_that_aborts_instead_of_running_stops_all) {
  for (const int bad : {1, 2}) {
    Trouble abort{.bad = Rank(bad)};
    abort.instead_of_run = [](ControlPlane& control) { control.abort("the operator stopped it"); };
    expect_errors_of_all(abort, {Code::aborted}, {"the operator stopped it"});
  }
}

TEST(MixedProcesses, a_rank_that_does_not_come_is_an_error_at_the_deadline) {
  for (const int bad : {0, 3}) {
    Trouble late{.bad = Rank(bad), .seconds = 0.2};
    late.instead_of_run = [](ControlPlane& control) {
      while (control.status()) std::this_thread::yield();
    };
    expect_errors_of_all(late, {Code::aborted, Code::deadline}, {});
  }
}

TEST(MixedProcesses, a_lost_message_is_an_error_at_the_deadline) {
  for (const int bad : {0, 2}) {
    Trouble lost{.bad = Rank(bad), .seconds = 0.5};
    lost.before_prepare = [](RankEnds& ends) {
      ends.transport =
          make_faulty(std::move(ends.transport), FaultPlan{{{Fault::Kind::drop, 2, 1}}, 0});
    };
    expect_errors_of_all(lost, {Code::aborted, Code::deadline}, {});
  }
}

TEST(MixedProcesses, a_killed_rank_is_named_to_all) {
  // Rank 0 serves the control plane: after its death no rank knows what its peers read.
  for (const int bad : {1, 2}) {
    Trouble killed{.bad = Rank(bad), .dies = true};
    const std::string name = "rank " + std::to_string(bad);
    killed.instead_of_run = [](ControlPlane&) { raise(SIGKILL); };
    expect_errors_of_all(killed, {Code::aborted}, {name.c_str()});
    for (const std::uint64_t message : {1UL, 6UL}) {
      killed.before_prepare = [message](RankEnds& ends) {
        FaultPlan plan{{{Fault::Kind::kill, message, 1}}, 0};
        plan.on_kill = [] { raise(SIGKILL); };
        ends.transport = make_faulty(std::move(ends.transport), std::move(plan));
      };
      killed.instead_of_run = {};
      expect_errors_of_all(killed, {Code::aborted}, {name.c_str()});
    }
  }
}

}  // namespace
}  // namespace reshard
