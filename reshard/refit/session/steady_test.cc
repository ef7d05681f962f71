// SPDX-License-Identifier: Apache-2.0
// Protects: after its first refit a session does hundreds more without growing memory: it plans
// nothing and allocates nothing, and every version is verified.
#include <gtest/gtest.h>

#include <algorithm>

#include "reshard/refit/session/allocation_count_testutil.h"
#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"

namespace reshard {
namespace {

constexpr int kRanks = 4;

SessionLayouts job_of(const ModelConfig& config) {
  return {config, "megatron:tp=2,pp=2,ep=1,etp=1", "vllm:tp=4", kRanks};
}

/// The allocations of all ranks in `work`. All wait for the count, so that it includes no others.
template <class Work>
std::int64_t allocations_of(RankEnds& ends, Work&& work) {
  EXPECT_TRUE(ends.control->barrier(patient()));
  const CountAllocations counted;
  EXPECT_TRUE(ends.control->barrier(patient()));
  work();
  EXPECT_TRUE(ends.control->barrier(patient()));
  const std::int64_t count = counted.everywhere();
  EXPECT_TRUE(ends.control->barrier(patient()));
  return count;
}

constexpr int kWarm = 6, kCounted = 8;

/// Allocations of all threads in each refit, after a few have made room.
std::vector<std::int64_t> steady_counts(RankEnds& ends, const SessionLayouts& job,
                                        const SessionOptions& options) {
  const SessionMemory memory(job, ends.rank(), {.shared = true});
  auto session = memory.prepare(ends, options);
  EXPECT_EQ(outcome(session), "");
  std::vector<std::int64_t> counts;
  for (int version = 0; session && version < kWarm + kCounted; ++version) {
    const auto count =
        allocations_of(ends, [&] { EXPECT_EQ(outcome(session->refit(version)), ""); });
    if (version >= kWarm) counts.push_back(count);
  }
  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
  return counts;
}

/// Ranks as threads that have joined like processes: the threads that listen to the control plane,
/// and the one that serves it, are counted too.
Result<> joined_threads(int n, const RankBody& body) {
  return run_joined_threads(n, [](ControlPlane& c) { return shm::make_transport(c, {}); }, body);
}

TEST(SessionSteady, allocates_nothing_in_any_thread) {
  const TransportUnderTest transports[] = {{"inproc", run_group_as_threads<InprocGroup>},
                                           {"shm", joined_threads}};
  for (const TransportUnderTest& transport : transports)
    for (const ModelConfig& config : {tiny_dense(), wide_moe()})
      for (const RefitPath path : {RefitPath::direct, RefitPath::message}) {
        SCOPED_TRACE(transport.name + (path == RefitPath::direct ? " direct" : " messages"));
        SessionOptions options;
        options.refit.path = path;
        const SessionLayouts job = job_of(config);
        EXPECT_EQ(outcome(transport.run(kRanks,
                                        [&](RankEnds& ends) {
                                          const auto counts = steady_counts(ends, job, options);
                                          // A message that comes earlier than ever before may add
                                          // room, but not in each refit.
                                          EXPECT_EQ(path == RefitPath::direct
                                                        ? std::ranges::max(counts)
                                                        : std::ranges::min(counts),
                                                    0)
                                              << testing::PrintToString(counts);
                                        })),
                  "");
      }
}

TEST(SessionSteady, allocates_nothing_where_ranks_relay) {
  const SessionLayouts job(wide_moe(), "megatron:tp=1", "vllm:tp=1,replicas=3,offset=1", kRanks);
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(
                kRanks,
                [&](RankEnds& ends) {
                  SessionOptions options;
                  options.routes = RouteMode::automatic;
                  options.host = "host " + std::to_string(ends.rank().value());
                  const auto counts = steady_counts(ends, job, options);
                  EXPECT_EQ(std::ranges::min(counts), 0) << testing::PrintToString(counts);
                })),
            "");
}

/// many_refits() versions, each verified. Memory is counted at the end and after the first fifth of
/// them, when the heap has all that it needs.
void refit_often(RankEnds& ends, const SessionLayouts& job, Buffering buffering, RefitPath path,
                 bool whole_process) {
  const SessionMemory memory(job, ends.rank(), {.shared = true});
  auto session = memory.prepare(ends, session_options(buffering, path, VerifyMode::always));
  ASSERT_EQ(outcome(session), "");
  const Index staging = session->staging_bytes();
  std::int64_t resident = 0, most = 0, first_most = 0;
  const int versions = many_refits(), first = versions / 5;
  for (int version = 0; version < versions; ++version) {
    memory.source_bytes.fill(memory.source, version);
    const CountAllocations counted;
    const auto report = session->refit(version);
    const std::int64_t count = counted.everywhere();
    ASSERT_EQ(outcome(report), "");
    ASSERT_EQ(report->plan_seconds, 0);
    ASSERT_EQ(memory.wrong(session->target_version()), 0) << "version " << version;
    if (version < first) continue;
    std::int64_t& of_half = version < versions / 2 ? first_most : most;
    of_half = std::max(of_half, count);
    if (version == first) resident = resident_bytes();
  }
  EXPECT_EQ(session->staging_bytes(), staging);
  EXPECT_LE(resident_bytes() - resident, kHeapPlay);
  // Threads of one process count each other's calls, which overlap as they like.
  if (whole_process) {
    EXPECT_LE(most, first_most + 8);
  }
  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
}

class SessionThousand : public testing::TestWithParam<std::tuple<Buffering, RefitPath>> {};
INSTANTIATE_TEST_SUITE_P(Ways, SessionThousand,
                         testing::Combine(testing::Values(Buffering::in_place, Buffering::doubled),
                                          testing::Values(RefitPath::direct, RefitPath::message)));

TEST_P(SessionThousand, refits_between_threads_grow_nothing) {
  const auto [buffering, path] = GetParam();
  const SessionLayouts job = job_of(tiny_dense());
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(
                kRanks, [&](RankEnds& ends) { refit_often(ends, job, buffering, path, false); })),
            "");
}

TEST_P(SessionThousand, refits_between_processes_grow_nothing) {
  const auto [buffering, path] = GetParam();
  const SessionLayouts job = job_of(tiny_dense());
  const auto processes = shm_processes("mapped,readv,ring");
  EXPECT_EQ(outcome(processes(
                kRanks, [&](RankEnds& ends) { refit_often(ends, job, buffering, path, true); })),
            "");
}

}  // namespace
}  // namespace reshard
