// SPDX-License-Identifier: Apache-2.0
// Protects: whatever happens to a message, no rank hangs, no rank reports success for a failed
// refit, and fingerprints detect bytes that changed.
#include <gtest/gtest.h>

#include <atomic>

#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/limited_transport_testutil.h"
#include "reshard/exec/rank_refit.h"
#include "reshard/exec/verify/fingerprints.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/testing/fault_testutil.h"
#include "reshard/transport/testing/rank_threads_testutil.h"

namespace reshard {
namespace {

constexpr Index kStaging = 32 << 10;  // the least: chunks of 4 KiB, so that tensors span many
constexpr int kRanks = 7;

/// Two trainer stages of two, three engine ranks besides: some ranks send, some receive, one stage
/// does both.
struct Job {
  ModelConfig config = wide_moe();
  std::shared_ptr<const ModelSpec> model = model_of(config);
  std::shared_ptr<const ModelLayout> from =
      layout_of("megatron:tp=2,pp=2,ep=2,etp=1", model, config);
  std::shared_ptr<const ModelLayout> to = layout_of("vllm:tp=4,offset=3", model, config);
  Planner planner = *Planner::make(from, to);
  RankBuffers source = allocate_all(from), target = allocate_all(to);
  Job() { fill_elements(source); }
};

/// How the refit runs: packed into few chunks, or nearly every tensor in messages of its own, or
/// from peers' memory, or both between two hosts.
struct Way {
  const char* name;
  RefitPath path;
  Index in_place_bytes;
  int hosts = 1, threads = 1;
};
constexpr Way kPacked{"packed", RefitPath::message, Index{64} << 10};
constexpr Way kInPlace{"in_place", RefitPath::message, 256};
constexpr Way kDirect{"direct", RefitPath::direct, 256};
constexpr Way kMixed[] = {{"mixed_1", RefitPath::automatic, 256, 2, 1},
                          {"mixed_2", RefitPath::automatic, 4096, 2, 2},
                          {"mixed_3", RefitPath::automatic, 256, 2, 3}};

/// The number of seeds: a quarter for each of the three mixed ways.
std::uint64_t seeds_of(const Way& way, std::uint64_t all) {
  return way.hosts > 1 ? (all + 3) / 4 : all;
}

class Faults : public testing::TestWithParam<Way> {};
/// Every message of the refit carries bytes of tensors.
class MessageFaults : public Faults {};
const auto kNameOf = [](const auto& tested) { return std::string(tested.param.name); };
INSTANTIATE_TEST_SUITE_P(Messages, Faults, testing::Values(kPacked, kInPlace), kNameOf);
INSTANTIATE_TEST_SUITE_P(Mixed, Faults, testing::ValuesIn(kMixed), kNameOf);
INSTANTIATE_TEST_SUITE_P(Messages, MessageFaults, testing::Values(kPacked, kInPlace), kNameOf);

/// Runs the refit on all ranks; `plan_of(rank)` says what goes wrong there. Returns how many ranks
/// reported success. The others' errors have the cause and the consequence.
template <class PlanOf>
int run(const Way& way, const Job& job, double seconds, PlanOf&& plan_of) {
  auto group = *InprocGroup::create(kRanks);
  std::atomic<int> succeeded{0};
  const auto body = [&](Rank r) -> Result<> {
    auto control = RESHARD_TRY(group.control(r));
    FaultPlan faults = plan_of(r);
    faults.on_kill = [&control] { control->close(); };
    auto faulty = make_faulty(RESHARD_TRY(group.transport(r)), std::move(faults));
    auto transport = std::make_unique<LimitedTransport>(std::move(faulty), Limit::none, way.hosts);
    RankRefitOptions options;
    options.path = way.path;
    options.in_place_bytes = way.in_place_bytes;
    options.staging_bytes = kStaging;
    options.seconds = seconds;
    options.threads = way.threads;
    auto refit =
        RankRefit::prepare(job.planner, &job.source, &job.target, *transport, *control, options);
    if (refit) {
      EXPECT_TRUE(way.hosts == 1 || refit->path() == "mixed") << refit->path();
      const auto done = refit->run();
      if (done) {
        ++succeeded;
      } else {
        EXPECT_NE(done.error().message.find("left targets undefined: "), std::string::npos)
            << done.error().message;
      }
    }
    transport->close();
    control->close();
    return {};
  };
  const auto ended = run_ranks(kRanks, body);
  EXPECT_TRUE(ended) << ended.error().message;
  return succeeded;
}

FaultPlan none(Rank) { return {}; }

TEST_P(Faults, without_any_all_ranks_succeed_in_many_chunks) {
  const Job job;
  EXPECT_EQ(run(GetParam(), job, 60, none), kRanks);
  EXPECT_EQ(count_wrong_elements(job.target), 0);
}

TEST_P(Faults, late_and_reordered_messages_do_no_harm) {
  for (std::uint64_t seed = 0; seed < seeds_of(GetParam(), 10); ++seed) {
    const Job job;
    const Fault::Kind kinds[] = {Fault::Kind::delay, Fault::Kind::reorder};
    EXPECT_EQ(
        run(GetParam(), job, 60, [&](Rank r) { return random_faults(seed, r, kinds, 6, 20); }),
        kRanks);
    EXPECT_EQ(count_wrong_elements(job.target), 0);
  }
}

/// Each kind of fault, on a rank that sends, at a message that depends on the seed. No rank may
/// succeed.
void expect_nobody_succeeds(const Way& way, Fault::Kind kind, double seconds, std::uint64_t seeds) {
  for (std::uint64_t seed = 0; seed < seeds_of(way, seeds); ++seed) {
    const Job job;
    const Rank bad(static_cast<int>(seed % 4));
    const auto plan = [&](Rank r) {
      return r == bad ? FaultPlan{{{kind, seed * 3 % 25, 1}}, seed} : FaultPlan{};
    };
    EXPECT_EQ(run(way, job, seconds, plan), 0) << "seed " << seed;
  }
}

TEST_P(Faults, a_killed_rank_fails_all) {
  expect_nobody_succeeds(GetParam(), Fault::Kind::kill, 60, 20);
}
TEST_P(Faults, a_truncated_message_fails_all) {
  expect_nobody_succeeds(GetParam(), Fault::Kind::truncate, 60, 20);
}
TEST_P(Faults, a_lost_message_fails_all_at_the_deadline) {
  expect_nobody_succeeds(GetParam(), Fault::Kind::drop, 0.2, 4);
}

TEST(DirectFaults, a_rank_killed_as_it_tells_of_its_memory_fails_all) {
  for (int message = 0; message < 6; ++message) {
    const Job job;
    const auto plan = [&](Rank r) {
      return r == Rank(1)
                 ? FaultPlan{{{Fault::Kind::kill, static_cast<std::uint64_t>(message), 1}}, 1}
                 : FaultPlan{};
    };
    EXPECT_EQ(run(kDirect, job, 60, plan), 0) << "message " << message;
  }
}
TEST(DirectFaults, a_changed_word_of_where_memory_is_fails_all) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Job job;
    const auto plan = [&](Rank r) {
      return r == Rank(1) ? FaultPlan{{{Fault::Kind::corrupt, seed % 6, 1}}, seed} : FaultPlan{};
    };
    EXPECT_EQ(run(kDirect, job, 60, plan), 0) << "seed " << seed;
  }
}

TEST_P(MessageFaults, a_flipped_bit_is_found_by_fingerprint) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Job job;
    const auto plan = [&](Rank r) {
      return r == Rank(1) ? FaultPlan{{{Fault::Kind::corrupt, seed, 1}}, seed} : FaultPlan{};
    };
    EXPECT_EQ(run(GetParam(), job, 60, plan), kRanks);
    EXPECT_FALSE(compare_fingerprints(*job.model, *fingerprints(job.source, 1),
                                      *fingerprints(job.target, 1)));
  }
}

}  // namespace
}  // namespace reshard
