// SPDX-License-Identifier: Apache-2.0
// Protects: where replicas relay, every one gets the bytes of each version, the trainer sends them
// once, and a relay that dies or stands still is an error on all ranks within the deadline.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <csignal>
#include <numeric>

#include "reshard/exec/refit_rank_testutil.h"
#include "reshard/plan/relays/random_replicas_testutil.h"
#include "reshard/refit/session/session_testutil.h"
#include "reshard/transport/inproc/inproc.h"
#include "reshard/transport/shm/shm_testutil.h"
#include "reshard/transport/testing/fault_testutil.h"

namespace reshard {
namespace {

using Hosts = std::function<int(Rank)>;

int own_host(Rank r) { return r.value(); }

SessionOptions relayed(SessionOptions options, Rank me, const Hosts& host) {
  options.routes = RouteMode::automatic;
  options.host = "host " + std::to_string(host(me));
  return options;
}

/// One trainer rank, and replicas on ranks 1 to `replicas`.
SessionLayouts one_trainer(int replicas) {
  return {tiny_dense(), "megatron:tp=1", "megatron:tp=1,offset=1,dp=" + std::to_string(replicas),
          replicas + 1};
}

Index sum_sent(const Session& session) {
  const auto& peers = session.peers();
  return std::accumulate(peers.begin(), peers.end(), Index{0},
                         [](Index sum, const PeerVolume& p) { return sum + p.sent; });
}

/// Refits versions 1 to 3 and checks all bytes of each.
void refit_thrice(RankEnds& ends, const SessionLayouts& job, const SessionOptions& options,
                  bool relays) {
  const SessionMemory memory(job, ends.rank());
  auto session = memory.prepare(ends, options);
  ASSERT_EQ(outcome(session), "");
  EXPECT_EQ(session->relays() != nullptr && session->relays()->used, relays);
  for (int version = 1; version <= 3; ++version) {
    memory.source_bytes.fill(memory.source, version);
    const auto report = session->refit(version);
    ASSERT_EQ(outcome(report), "");
    EXPECT_EQ(report->plan_seconds, 0);
    EXPECT_EQ(memory.wrong(session->target_version()), 0) << "version " << version;
  }
  EXPECT_EQ(outcome(session->verify()), "");
  if (relays && ends.rank() == Rank(0)) {
    // The other ranks of the source are on the same host.
    EXPECT_LE(sum_sent(*session), session->relays()->busiest_bytes);
    EXPECT_GE(sum_sent(*session) * job.from->ranks().size(), session->relays()->busiest_bytes);
  }
  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
}

const TransportUnderTest kTransports[] = {{"inproc", run_group_as_threads<InprocGroup>},
                                          {"shm_ring", shm_processes("ring")},
                                          {"shm", shm_processes("mapped,readv,ring")}};

class SessionRelays : public testing::TestWithParam<TransportUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Transports, SessionRelays, testing::ValuesIn(kTransports),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(SessionRelays, bring_each_version_to_all_replicas_from_one_copy) {
  for (const int replicas : {2, 4, 8})
    for (const Buffering buffering : {Buffering::in_place, Buffering::doubled})
      for (const bool small : {false, true}) {
        SCOPED_TRACE(std::to_string(replicas) + " replicas");
        const SessionLayouts job = one_trainer(replicas);
        EXPECT_EQ(outcome(GetParam().run(
                      job.ranks,
                      [&](RankEnds& ends) {
                        SessionOptions options =
                            session_options(buffering, RefitPath::automatic, VerifyMode::always);
                        if (small) options = in_small_messages(std::move(options));
                        refit_thrice(ends, job, relayed(options, ends.rank(), own_host), true);
                      })),
                  "");
      }
}

TEST_P(SessionRelays, pass_bytes_on_within_their_hosts) {
  // Trainers of two ranks, and four engines of two ranks on two hosts.
  const SessionLayouts job(tiny_moe(), "megatron:tp=2", "vllm:tp=2,replicas=4,offset=2", 10);
  const Hosts hosts = [](Rank r) { return r.value() < 2 ? 0 : 1 + (r.value() - 2) / 4; };
  EXPECT_EQ(outcome(GetParam().run(job.ranks,
                                   [&](RankEnds& ends) {
                                     SessionOptions options;
                                     refit_thrice(ends, job, relayed(options, ends.rank(), hosts),
                                                  true);
                                   })),
            "");
}

TEST_P(SessionRelays, leave_routes_direct_where_they_gain_nothing) {
  const SessionLayouts job = one_trainer(3);
  EXPECT_EQ(outcome(GetParam().run(job.ranks,
                                   [&](RankEnds& ends) {
                                     SessionOptions options;
                                     options.routes = RouteMode::automatic;
                                     refit_thrice(ends, job, options, false);
                                     options.refit.path = RefitPath::message;
                                     refit_thrice(ends, job, options, false);
                                   })),
            "");
}

TEST(SessionRoutes, are_direct_where_memory_is_read_although_hosts_differ) {
  const SessionLayouts job = one_trainer(3);
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(
                job.ranks,
                [&](RankEnds& ends) {
                  SessionOptions options;
                  options.refit.path = RefitPath::direct;
                  refit_thrice(ends, job, relayed(options, ends.rank(), own_host), false);
                })),
            "");
}

TEST(SessionRoutes, need_a_name_of_the_host_that_is_not_too_long) {
  const SessionLayouts job = one_trainer(2);
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(
                job.ranks,
                [&](RankEnds& ends) {
                  const SessionMemory memory(job, ends.rank());
                  SessionOptions options = relayed({}, ends.rank(), own_host);
                  if (ends.rank() == Rank(2)) options.host = std::string(2000, 'x');
                  expect_error(memory.prepare(ends, options), Code::invalid_argument,
                               {"rank 2", "the name of the host has 2000 bytes"});
                })),
            "");
}

TEST(SessionRoutes, relay_from_the_memory_of_gpus) {
  const SessionLayouts job = one_trainer(3);
  const Planner planner = *Planner::make(job.from, job.to);
  const auto side_of = [](const std::shared_ptr<const ModelLayout>& layout, Rank me) {
    const std::vector<Rank> ranks(layout->ranks().contains(me) ? 1 : 0, me);
    return RefitRankSide(*RankBuffers::allocate(layout, ranks), me.value() != 2);
  };
  EXPECT_EQ(outcome(run_group_as_threads<InprocGroup>(
                job.ranks,
                [&](RankEnds& ends) {
                  const RefitRankSide from = side_of(job.from, ends.rank()),
                                      to = side_of(job.to, ends.rank());
                  fill_values(from.host);
                  ASSERT_EQ(outcome(from.write()), "");
                  SessionOptions options;
                  options.verify = VerifyMode::always;
                  auto session = Session::prepare(*ends.transport, *ends.control,
                                                  {.layout = job.from, .buffers = from.buffers()},
                                                  {.layout = job.to, .buffers = to.buffers()},
                                                  relayed(options, ends.rank(), own_host));
                  ASSERT_EQ(outcome(session), "");
                  ASSERT_TRUE(session->relays() != nullptr && session->relays()->used);
                  for (const int version : {1, 2}) {
                    ASSERT_EQ(outcome(session->refit(version)), "");
                    ASSERT_EQ(outcome(to.read()), "");
                    EXPECT_EQ(count_wrong_values(planner, to.host), 0);
                  }
                  EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
                })),
            "");
}

/// Any layouts with replicas on any hosts, in messages of any size.
RC_GTEST_PROP(SessionRoutes, bring_the_same_bytes_whichever_they_are, ()) {
  const RandomReplicas replicas;
  const int ranks =
      (replicas.source->ranks() | replicas.target->ranks()).members().back().value() + 1;
  const SessionLayouts job(replicas.source, replicas.target, ranks);
  const int per_host = *rc::gen::element(1, 1, 2, 3), shuffled = *rc::gen::element(0, 0, 5);
  const Hosts hosts = [&](Rank r) {
    return shuffled > 0 ? r.value() * 7 % shuffled : r.value() / per_host;
  };
  SessionOptions options =
      session_options(*rc::gen::element(Buffering::in_place, Buffering::doubled),
                      *rc::gen::element(RefitPath::automatic, RefitPath::message),
                      *rc::gen::element(VerifyMode::never, VerifyMode::always));
  options.refit.staging_bytes = *rc::gen::element(Index{32} << 10, Index{1} << 20);
  options.refit.in_place_bytes = *rc::gen::element<Index>(256, 4096, Index{64} << 10);
  RC_ASSERT(outcome(run_group_as_threads<InprocGroup>(ranks, [&](RankEnds& ends) {
              const SessionMemory memory(job, ends.rank());
              auto session = memory.prepare(ends, relayed(options, ends.rank(), hosts));
              ASSERT_EQ(outcome(session), "");
              for (int version = 1; version <= 2; ++version) {
                memory.source_bytes.fill(memory.source, version);
                ASSERT_EQ(outcome(session->refit(version)), "");
                EXPECT_EQ(memory.wrong(session->target_version()), 0);
              }
              EXPECT_EQ(outcome(ends.control->quiesce(patient())), "");
            })) == "");
  RC_ASSERT(!testing::Test::HasFailure());
}

constexpr double kDeadline = 1.5;

/// Refits some versions, and then one more, in which `harm` reaches a relay: an error on every
/// other rank in time, with this text, and no target that calls itself whole has a wrong byte.
void expect_error_in_time(const TransportUnderTest& transport, Rank relay, int versions,
                          const std::string& text,
                          const std::function<void(RankEnds&, SessionOptions&)>& harm) {
  const SessionLayouts job = one_trainer(4);
  EXPECT_EQ(
      outcome(transport.run(
          job.ranks,
          [&](RankEnds& ends) {
            const SessionMemory memory(job, ends.rank());
            SessionOptions options = in_small_messages(relayed(
                session_options(Buffering::in_place, RefitPath::automatic), ends.rank(), own_host));
            options.refit.seconds = kDeadline;
            if (ends.rank() == relay) harm(ends, options);
            auto session = memory.prepare(ends, options);
            ASSERT_EQ(outcome(session), "");
            ASSERT_TRUE(session->relays()->used);
            for (int version = 1; version <= versions; ++version) {
              memory.source_bytes.fill(memory.source, version);
              ASSERT_EQ(outcome(session->refit(version)), "");
            }
            memory.source_bytes.fill(memory.source, versions + 1);
            const auto begin = std::chrono::steady_clock::now();
            const auto failed = session->refit(versions + 1);
            ASSERT_FALSE(failed);
            EXPECT_NE(failed.error().message.find(text), std::string::npos)
                << failed.error().message;
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
            EXPECT_LT(took.count(), kDeadline + 3);  // two seconds, and one for a loaded machine
            EXPECT_EQ(memory.wrong(session->target_version()), 0);
          })),
      "");
}

TEST(SessionRelayFaults, a_relay_that_is_killed_is_an_error_on_all) {
  for (const char* ways : {"ring", "mapped,readv,ring"})
    for (const int doomed : {1, 2, 4})
      for (const SessionPhase phase : {SessionPhase::transfer, SessionPhase::check}) {
        ProcessOptions processes;
        processes.doomed = {doomed};
        const TransportUnderTest shm{"shm", shm_processes(ways, processes)};
        expect_error_in_time(shm, Rank(doomed), 1, "rank " + std::to_string(doomed),
                             [&](RankEnds&, SessionOptions& options) {
                               options.on_phase = [&, refits = 0](SessionPhase now) mutable {
                                 refits += now == SessionPhase::begin ? 1 : 0;
                                 if (refits == 2 && now == phase) raise(SIGKILL);
                                 return Result<>();
                               };
                             });
      }
}

TEST(SessionRelayFaults, a_relay_that_is_killed_between_messages_is_an_error_on_all) {
  for (const std::uint64_t message : {1UL, 7UL}) {
    ProcessOptions processes;
    processes.doomed = {2};
    const TransportUnderTest shm{"shm", shm_processes("ring", processes)};
    expect_error_in_time(shm, Rank(2), 0, "rank 2", [&](RankEnds& ends, SessionOptions&) {
      FaultPlan plan{{{Fault::Kind::kill, message, 1}}, 0};
      plan.on_kill = [] { raise(SIGKILL); };
      ends.transport = make_faulty(std::move(ends.transport), std::move(plan));
    });
  }
}

TEST(SessionRelayFaults, a_relay_that_stands_still_is_an_error_on_all) {
  const TransportUnderTest inproc{"inproc", run_group_as_threads<InprocGroup>};
  expect_error_in_time(
      inproc, Rank(2), 1, "deadline passed", [](RankEnds& ends, SessionOptions& options) {
        options.on_phase = [&ends, refits = 0](SessionPhase now) mutable {
          refits += now == SessionPhase::begin ? 1 : 0;
          // Until the others have given up.
          while (refits == 2 && now == SessionPhase::transfer && ends.control->status())
            std::this_thread::yield();
          return Result<>();
        };
      });
}

}  // namespace
}  // namespace reshard
