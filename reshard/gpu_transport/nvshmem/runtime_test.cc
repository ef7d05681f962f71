// SPDX-License-Identifier: Apache-2.0
// Protects: a process has one NVSHMEM world, in which groups follow each other; whatever is wrong
// on one rank is said on all, and none waits for ever.
#include "reshard/gpu_transport/nvshmem/runtime.h"

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "reshard/gpu_transport/nvshmem/model_group_testutil.h"

namespace reshard::nvshmem {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr std::size_t kStaging = std::size_t{1} << 20;

/// Sends 10 kB to the next rank.
void pass_on(RankEnds& me) {
  const Rank next{(me.rank().value() + 1) % me.size()};
  const Rank previous{(me.rank().value() + me.size() - 1) % me.size()};
  const Bytes payload = pattern(me.rank(), next, MessageId{1}, 10'000);
  Room room(previous, MessageId{1}, 10'000);
  const Send send{next, MessageId{1}, payload};
  const Recv recv = room.recv();
  EXPECT_EQ(outcome(step(*me.transport, {&send, 1}, {&recv, 1})), "");
  EXPECT_TRUE(room.holds_pattern(me.rank()));
}

/// For each rank of a group of these PEs, the outcome of making its transport.
std::vector<std::string> said_by(ModelGroup& group, const std::vector<int>& pes,
                                 const std::function<std::size_t(Rank)>& staging,
                                 Deadline deadline = patient()) {
  auto control = InprocGroup::create(static_cast<int>(pes.size()));
  std::vector<std::string> said(pes.size());
  EXPECT_TRUE(run_ranks(static_cast<int>(pes.size()), [&](Rank rank) -> Result<> {
    const auto i = static_cast<std::size_t>(rank.value());
    const NvshmemModel::As as(group.model(), pes[i]);
    const auto mine = RESHARD_TRY(control->control(rank));
    said[i] = outcome(make_transport(group.world(pes[i]), *mine, cuda::gpu_under_test(),
                                     staging(rank), deadline));
    return {};
  }));
  return said;
}
std::size_t same(Rank) { return kStaging; }

TEST(NvshmemWorld, groups_of_the_same_and_of_fewer_processes_follow_each_other) {
  ModelGroup group({.pes = 4}, kStaging);
  for (const std::vector<int>& pes :
       std::vector<std::vector<int>>{{0, 1, 2, 3}, {3, 1, 0, 2}, {2, 0}, {1}, {0, 1, 2, 3}})
    EXPECT_EQ(outcome(group.run(pes, pass_on)), "");
}

TEST(NvshmemWorld, a_process_is_in_one_group_at_a_time) {
  ModelGroup group({.pes = 2}, kStaging);
  std::vector<RankEnds> ranks = group.make_ranks();
  EXPECT_THAT(said_by(group, {0, 1}, same),
              Each(AllOf(HasSubstr("unsupported"), HasSubstr("is in a group already"))));
  for (int pe = 0; pe < 2; ++pe) {
    const NvshmemModel::As as(group.model(), pe);
    ranks[static_cast<std::size_t>(pe)].transport.reset();
  }
  EXPECT_EQ(outcome(group.run({0, 1}, pass_on)), "");
}

TEST(NvshmemWorld, a_process_that_is_not_in_the_world_cannot_join_it) {
  ModelGroup group({.pes = 2}, kStaging);
  EXPECT_EQ(outcome(group.run({0, 1}, pass_on)), "");
  // PE 1 of another model is a process that has not started NVSHMEM.
  Runtime fresh(NvshmemModel::library());
  NvshmemModel other({.pes = 2});
  auto control = InprocGroup::create(2);
  EXPECT_TRUE(run_ranks(2, [&](Rank rank) -> Result<> {
    const bool old = rank == Rank{0};
    const NvshmemModel::As as(old ? group.model() : other, rank.value());
    const auto mine = RESHARD_TRY(control->control(rank));
    expect_error(make_transport(old ? group.world(0) : fresh, *mine, cuda::gpu_under_test(),
                                kStaging, patient()),
                 Code::unsupported, {"rank 1 is not in the NVSHMEM world of rank 0"});
    return {};
  }));
}

TEST(NvshmemWorld, a_process_that_has_started_nvshmem_itself_is_refused) {
  ModelGroup group({.pes = 2, .is_started = true}, kStaging);
  EXPECT_THAT(said_by(group, {0, 1}, same), Each(HasSubstr("has started NVSHMEM by itself")));
}

TEST(NvshmemWorld, different_staging_is_refused_on_all_ranks) {
  ModelGroup group({.pes = 3}, kStaging);
  EXPECT_THAT(said_by(group, {0, 1, 2},
                      [](Rank rank) { return rank == Rank{2} ? 2 * kStaging : kStaging; }),
              Each(HasSubstr("rank 2 has 2097152 bytes of staging and rank 0 1048576")));
}

TEST(NvshmemWorld, too_little_staging_and_a_short_heap_are_errors) {
  ModelGroup small({.pes = 2}, kStaging);
  EXPECT_THAT(said_by(small, {0, 1}, [](Rank) { return std::size_t{5000}; }),
              Each(HasSubstr("5000 bytes of staging are too few for 2 ranks")));
  ModelGroup poor({.pes = 2, .heap_bytes = 1000}, kStaging);
  EXPECT_THAT(said_by(poor, {0, 1}, same),
              Each(AllOf(HasSubstr("nvshmem_malloc"), HasSubstr("NVSHMEM_SYMMETRIC_SIZE"))));
}

TEST(NvshmemWorld, a_failed_start_says_so_and_is_not_tried_again) {
  ModelGroup group({.pes = 2, .init_result = 7}, kStaging);
  EXPECT_THAT(said_by(group, {0, 1}, same),
              Each(AllOf(HasSubstr("status 7"), HasSubstr("NVSHMEM_DEBUG"))));
  EXPECT_THAT(said_by(group, {0, 1}, same),
              Each(AllOf(HasSubstr("not usable any more"), HasSubstr("status 7"))));
}

TEST(NvshmemWorld, a_start_that_reports_success_without_starting_is_an_error) {
  ModelGroup group({.pes = 2, .started_status = kBootstrapped}, kStaging);
  EXPECT_THAT(said_by(group, {0, 1}, same), Each(HasSubstr("in state 1")));
}

TEST(NvshmemWorld, ranks_that_share_a_gpu_without_mps_are_refused_if_a_network_is_between_them) {
  ModelGroup group({.pes = 2, .mapped = false, .started_status = kLimitedSharing}, kStaging);
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(said_by(group, {0, 1}, same),
                Each(AllOf(HasSubstr("unsupported"), HasSubstr("start MPS"))));
}

TEST(NvshmemWorld, a_start_that_never_ends_stops_at_the_deadline) {
  // NVSHMEM waits for a third PE, which is not in the group.
  ModelGroup group({.pes = 3}, kStaging);
  // Enough for both to arrive, so that it is NVSHMEM for which they wait.
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(500));
  EXPECT_THAT(said_by(group, {0, 1}, same, deadline), Each(HasSubstr("deadline")));
  EXPECT_THAT(said_by(group, {0, 1}, same), Each(HasSubstr("not usable any more")));
}

TEST(NvshmemWorld, an_abort_ends_the_wait_for_the_start) {
  ModelGroup group({.pes = 3}, kStaging);
  auto control = InprocGroup::create(2);
  EXPECT_TRUE(run_ranks(2, [&](Rank rank) -> Result<> {
    const NvshmemModel::As as(group.model(), rank.value());
    const auto mine = RESHARD_TRY(control->control(rank));
    std::jthread watcher;
    if (rank == Rank{1}) watcher = std::jthread([&] { mine->abort("cancelled by the user"); });
    expect_error(make_transport(group.world(rank.value()), *mine, cuda::gpu_under_test(), kStaging,
                                Deadline::never()),
                 Code::aborted, {"cancelled by the user"});
    return {};
  }));
}

TEST(NvshmemWorld, work_that_was_left_behind_lets_no_other_group_in) {
  ModelGroup group({.pes = 2}, kStaging);
  EXPECT_EQ(outcome(group.run({0, 1}, pass_on)), "");
  group.world(1).leave(false);
  EXPECT_THAT(said_by(group, {0, 1}, same), Each(HasSubstr("work of an earlier group")));
}

TEST(NvshmemWorld, an_error_of_one_rank_reaches_all) {
  auto control = InprocGroup::create(3);
  EXPECT_TRUE(run_ranks(3, [&](Rank rank) -> Result<> {
    const auto mine = RESHARD_TRY(control->control(rank));
    const Result<> local =
        rank == Rank{1} ? Result<>(fail(Code::unsupported, "no paper")) : Result<>();
    expect_error(agree(*mine, local, patient()), Code::unsupported,
                 {rank == Rank{1} ? "no paper" : "rank 1: no paper"});
    EXPECT_TRUE(agree(*mine, {}, patient()));
    return {};
  }));
}

}  // namespace
}  // namespace reshard::nvshmem
