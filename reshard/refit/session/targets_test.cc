// SPDX-License-Identifier: Apache-2.0
// Protects: a refit brings several targets, each in a layout and format of its own, to one version,
// byte for byte what each of them alone would hold; and commits all of them or none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <limits>

#include "reshard/refit/session/job_targets.h"
#include "reshard/refit/session/quantised_suite_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard::quantised {
namespace {

/// Engines in different roles, fed by one trainer.
struct Roles {
  std::string name;
  ModelConfig config;
  std::string from;
  std::vector<std::pair<std::string, std::string>> to;  ///< layouts and formats, "" for plain.
  int ranks;
  std::size_t jobs;  ///< plans that serve them.
};
std::ostream& operator<<(std::ostream& out, const Roles& roles) { return out << roles.name; }

std::vector<Roles> roles() {
  return {
      {"prefill_and_decode",
       even_moe(),
       "megatron:tp=2",
       {{"vllm:tp=2,offset=2", ""}, {"vllm:tp=4,offset=4", ""}},
       8,
       1},
      {"on_the_ranks_of_the_trainer",
       even_moe(),
       "megatron:tp=2,pp=2",
       {{"vllm:tp=2,offset=1", ""}, {"vllm:tp=1,offset=0", ""}, {"vllm:tp=4", ""}},
       5,
       2},
      {"in_other_forms",
       even_moe(),
       "megatron:tp=2",
       {{"vllm:tp=2,offset=2", ""}, {"vllm:tp=2,offset=4,dtype=float32", ""}},
       6,
       2},
      {"quantised_and_plain",
       wide_moe(),
       "megatron:tp=2",
       {{"vllm:tp=2,offset=2", "fp8_block"}, {"vllm:tp=1,offset=2", ""}},
       4,
       2},
      {"in_two_formats",
       even_moe(),
       "hf:shards=2",
       {{"vllm:tp=2,offset=1", "mxfp8"}, {"vllm:tp=2,offset=2", "nvfp4"}, {"hf:shards=1", ""}},
       4,
       3},
  };
}

struct Engines {
  explicit Engines(const Roles& of) : model(model_of(of.config)), source(side(of, of.from, "")) {
    for (const auto& [layout, format] : of.to) targets.push_back(side(of, layout, format));
  }
  OracleSide side(const Roles& of, const std::string& layout, const std::string& format) const {
    Case c;
    c.config = of.config;
    return side_of(layout, c, format, BlockGrid::local, model);
  }
  void fill(std::int64_t version) {
    for (OracleSide& target : targets) fill_sides(source, target, version);
  }
  std::vector<SessionSide> sides() const {
    std::vector<SessionSide> out;
    for (const OracleSide& target : targets) out.push_back(target.side());
    return out;
  }
  std::shared_ptr<const ModelSpec> model;
  OracleSide source;
  std::vector<OracleSide> targets;
};

/// One rank's memory of a side.
struct Memory {
  Memory(const OracleSide& of, Rank me, bool on_gpu)
      : front(mine(*of.stored, me), on_gpu), back(mine(*of.stored, me), on_gpu) {}
  SessionSide side(const OracleSide& of) const {
    SessionSide side = of.side();
    side.buffers = front.buffers();
    side.back = back.buffers();
    return side;
  }
  RefitRankSide front, back;
};

struct RankMemory {
  RankMemory(const Engines& of, Rank me, bool on_gpu) : source(of.source, me, on_gpu) {
    for (const OracleSide& target : of.targets) targets.emplace_back(target, me, on_gpu);
  }
  std::vector<SessionSide> sides(const Engines& of) const {
    std::vector<SessionSide> out;
    for (std::size_t i = 0; i < targets.size(); ++i) out.push_back(targets[i].side(of.targets[i]));
    return out;
  }
  Memory source;
  std::deque<Memory> targets;
};

void expect_bytes(const Engines& engines, const RankMemory& memory, Rank me,
                  const TargetVersion& now) {
  for (std::size_t i = 0; i < memory.targets.size(); ++i) {
    const RefitRankSide& copy = now.buffer == 0 ? memory.targets[i].front : memory.targets[i].back;
    if (copy.buffers() == nullptr) continue;
    EXPECT_EQ(now.state, TargetState::whole);
    ASSERT_EQ(outcome(copy.read()), "");
    EXPECT_EQ(different_bytes(copy.host, *engines.targets[i].stored, me), 0)
        << "target " << i << ", version " << now.version;
  }
}

void refit_all(RankEnds& ends, Engines& engines, const Way& way, bool shared_memory) {
  const Rank me = ends.rank();
  const RankMemory memory(engines, me, way.on_gpu);
  for (const Memory& target : memory.targets)
    for (const RefitRankSide* side : {&target.front, &target.back})
      ASSERT_EQ(outcome(side->write()), "");
  SessionSide source = memory.source.side(engines.source);
  auto session = Session::prepare(*ends.transport, *ends.control, source, memory.sides(engines),
                                  options_of(way));
  ASSERT_EQ(outcome(session), "");
  for (std::int64_t version = 1; version <= 3; ++version) {
    if (!shared_memory || me == Rank(0)) engines.fill(version);
    ASSERT_TRUE(ends.control->barrier(patient()));
    copy_to(*engines.source.stored, memory.source.front.host, me);
    ASSERT_EQ(outcome(memory.source.front.write()), "");
    const auto report = session->refit(version);
    ASSERT_EQ(outcome(report), "");
    EXPECT_EQ(report->plan_seconds, 0);
    expect_bytes(engines, memory, me, session->target_version());
    EXPECT_EQ(outcome(session->verify()), "");
    ASSERT_TRUE(ends.control->barrier(patient()));
  }
  // On a GPU each job has scratch of its own, too.
  const Index most = way.on_gpu ? std::numeric_limits<Index>::max() : way.staging * 2;
  EXPECT_LE(session->staging_bytes(), most);
  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
}

class SessionTargets : public testing::TestWithParam<std::tuple<Roles, Way>> {};
const auto kName = [](const auto& tested) {
  return std::get<0>(tested.param).name + "_" + std::get<1>(tested.param).name;
};
INSTANTIATE_TEST_SUITE_P(Roles, SessionTargets,
                         testing::Combine(testing::ValuesIn(roles()), testing::ValuesIn(ways())),
                         kName);
INSTANTIATE_TEST_SUITE_P(OnGpu, SessionTargets,
                         testing::Combine(testing::ValuesIn(roles()),
                                          testing::ValuesIn(gpu_ways())),
                         kName);

TEST_P(SessionTargets, all_hold_what_the_oracle_says_of_each) {
  const auto& [of, way] = GetParam();
  Engines engines(of);
  const auto served = session::job_targets(engines.sides(), Rank(0));
  ASSERT_TRUE(served);
  EXPECT_EQ(served->size(), of.jobs);
  EXPECT_EQ(
      outcome(run_group_as_threads<InprocGroup>(
          of.ranks, [&, &way = way](RankEnds& ends) { refit_all(ends, engines, way, true); })),
      "");
}

class SessionTargetsOfProcesses : public testing::TestWithParam<Roles> {};
INSTANTIATE_TEST_SUITE_P(Roles, SessionTargetsOfProcesses, testing::ValuesIn(roles()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(SessionTargetsOfProcesses, all_hold_what_the_oracle_says_of_each) {
  Engines engines(GetParam());
  for (const Way& way : {ways()[0], ways()[2]})
    EXPECT_EQ(outcome(shm_processes("mapped,readv,ring")(
                  GetParam().ranks, [&](RankEnds& ends) { refit_all(ends, engines, way, false); })),
              "");
}

/// A group whose ranks are threads, each with memory of its own.
void run(const Roles& of, const std::function<void(RankEnds&, const Engines&, RankMemory&)>& rank) {
  Engines engines(of);
  engines.fill(1);
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(
                of.ranks,
                [&](RankEnds& ends) {
                  RankMemory memory(engines, ends.rank(), false);
                  copy_to(*engines.source.stored, memory.source.front.host, ends.rank());
                  rank(ends, engines, memory);
                })),
            "");
}

Result<Session> prepare(RankEnds& ends, const Engines& engines, const RankMemory& memory,
                        std::vector<SessionSide> targets, SessionOptions options = {}) {
  return Session::prepare(*ends.transport, *ends.control, memory.source.side(engines.source),
                          std::move(targets), std::move(options));
}

TEST(SessionTargetsAtRisk, commit_all_or_none) {
  for (const Roles& of : roles()) {
    for (const SessionPhase phase : {SessionPhase::transfer, SessionPhase::check}) {
      SCOPED_TRACE(of.name);
      run(of, [&](RankEnds& ends, const Engines& engines, RankMemory& memory) {
        SessionOptions options;
        options.buffering = Buffering::doubled;
        options.on_phase = [&](SessionPhase now) -> Result<> {
          if (now != phase || ends.rank() != Rank(1)) return {};
          return fail(Code::io, "the engine does not answer");
        };
        PublishedVersion published;
        auto sides = memory.sides(engines);
        sides.back().published = &published;
        auto session = prepare(ends, engines, memory, sides, options);
        ASSERT_EQ(outcome(session), "");
        EXPECT_THAT(outcome(session->refit(1)), testing::HasSubstr("the engine does not answer"));
        EXPECT_EQ(published.target_version().state, TargetState::empty);
        EXPECT_EQ(session->target_version().state, TargetState::empty);
      });
    }
  }
}

TEST(SessionTargetsAtRisk, name_the_target_that_moved) {
  run(roles()[3], [&](RankEnds& ends, const Engines& engines, RankMemory& memory) {
    auto session = prepare(ends, engines, memory, memory.sides(engines));
    ASSERT_EQ(outcome(session), "");
    EXPECT_EQ(outcome(session->refit(1)), "");
    auto moved = memory.sides(engines);
    if (ends.rank() == Rank(2)) std::swap(moved[1].buffers, moved[1].back);
    session->update(memory.source.side(engines.source), moved);
    EXPECT_THAT(outcome(session->refit(2)), testing::HasSubstr("rank 2: target 2 tensor '"));
    session->update(memory.source.side(engines.source), memory.sides(engines));
    EXPECT_EQ(outcome(session->refit(2)), "");
    expect_bytes(engines, memory, ends.rank(), session->target_version());
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

TEST(SessionTargetsAtRisk, are_planned_anew_with_more_or_fewer_targets) {
  run(roles()[0], [&](RankEnds& ends, const Engines& engines, RankMemory& memory) {
    SessionOptions options;
    options.replan = true;
    auto sides = memory.sides(engines);
    auto session = prepare(ends, engines, memory, {sides[0]}, options);
    ASSERT_EQ(outcome(session), "");
    EXPECT_EQ(outcome(session->refit(1)), "");
    session->update(memory.source.side(engines.source), sides);
    const auto both = session->refit(2);
    ASSERT_EQ(outcome(both), "");
    EXPECT_GT(both->plan_seconds, 0);
    expect_bytes(engines, memory, ends.rank(), session->target_version());
    session->update(memory.source.side(engines.source), {sides[1]});
    EXPECT_EQ(outcome(session->refit(3)), "");
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

std::string refusal(RankEnds& ends, const Engines& engines, const RankMemory& memory,
                    std::vector<SessionSide> targets) {
  return outcome(prepare(ends, engines, memory, std::move(targets)));
}

TEST(SessionTargetsAtRisk, are_refused_if_they_cannot_be_brought_to_one_version) {
  run(roles()[3], [&](RankEnds& ends, const Engines& engines, RankMemory& memory) {
    EXPECT_THAT(refusal(ends, engines, memory, {}), testing::HasSubstr("a session needs a target"));
    PublishedVersion one, other;
    auto sides = memory.sides(engines);
    sides[0].published = &one;
    sides[1].published = &other;
    EXPECT_THAT(refusal(ends, engines, memory, sides),
                testing::HasSubstr("pass the same PublishedVersion for all"));
    auto twice = memory.sides(engines);
    twice[0] = twice[1];
    if (ends.rank() == Rank(2)) {
      EXPECT_THAT(refusal(ends, engines, memory, twice), testing::HasSubstr("shares memory with"));
    } else {
      EXPECT_THAT(refusal(ends, engines, memory, twice), testing::HasSubstr("rank 2: "));
    }
    SessionOptions little;
    little.refit.staging_bytes = Index{48} << 10;
    EXPECT_THAT(outcome(prepare(ends, engines, memory, memory.sides(engines), little)),
                testing::HasSubstr("too small for 2 targets that are moved one after another; give "
                                   "every rank 65536 or more"));
    EXPECT_EQ(refusal(ends, engines, memory, memory.sides(engines)), "");
  });
}

TEST(SessionTargetsAtRisk, relay_to_each_other) {
  const Roles of{
      "", even_moe(), "megatron:tp=1", {{"vllm:tp=1,offset=1", ""}, {"vllm:tp=1,offset=2", ""}},
      3,  1};
  run(of, [&](RankEnds& ends, const Engines& engines, RankMemory& memory) {
    SessionOptions options;
    options.routes = RouteMode::automatic;
    options.host = "host " + std::to_string(ends.rank().value());
    auto session = prepare(ends, engines, memory, memory.sides(engines), options);
    ASSERT_EQ(outcome(session), "");
    ASSERT_NE(session->relays(), nullptr);
    EXPECT_TRUE(session->relays()->used);
    EXPECT_EQ(outcome(session->refit(1)), "");
    expect_bytes(engines, memory, ends.rank(), session->target_version());
    EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  });
}

}  // namespace
}  // namespace reshard::quantised
