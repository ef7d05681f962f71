// SPDX-License-Identifier: Apache-2.0
// Protects: programs that break one of the laws 3 to 7 are refused, and the error names the law.
// Each test breaks one thing in a pair of programs that keep all laws.
#include <gtest/gtest.h>

#include "reshard/program/builder.h"
#include "reshard/program/check.h"
#include "reshard/program/programs_testutil.h"

namespace reshard::program {
namespace {

constexpr Index kBytes = 64;
const SlotId kSlot(0);

StridedCopy bytes(Index src, Index dst, Index n) {
  StridedCopy copy;
  copy.src_offset = src;
  copy.dst_offset = dst;
  copy.run_bytes = n;
  return copy;
}

/// The fault that a test puts into its programs.
enum class Breaks {
  nothing,
  send_waits_for_packing,
  packing_waits_for_sending,
  unpacking_waits_for_receiving,
  receiving_waits_for_unpacking,
  packs_all,
  unpacks_all,
  unpacks_once,
  reads_own_scratch,
};

/// Rank 0 packs its source in two halves, in the same staging, and sends each.
Program sender(Breaks what) {
  Builder b(Rank(0), 7);
  const BufferId from = b.tensor(ProgramBuffer::Kind::source, Rank(0), kSlot, 2 * kBytes);
  std::vector<StepId> sent;
  for (Index half = 0; half < 2; ++half) {
    const Index packed = what == Breaks::packs_all ? kBytes / 2 : kBytes;
    b.copy({bytes(half * kBytes, 0, packed), from, Builder::kStaging, {}}, false);
    if (what == Breaks::packing_waits_for_sending) sent.clear();
    const StepId tile = b.tile(0, 0, sent);
    const ProgramMessage m{
        Rank(1), static_cast<std::uint64_t>(half), true, {Builder::kStaging, 0}, kBytes};
    std::vector<StepId> waits{tile};
    if (what == Breaks::send_waits_for_packing) waits.clear();
    sent = {b.exchange(std::span(&m, 1), kBytes, 0, waits)};
  }
  b.barrier(b.last_steps());
  return std::move(b).finish(kBytes, 0);
}

/// Rank 1 receives both halves in the same staging, and unpacks each.
Program receiver(Breaks what) {
  Builder b(Rank(1), 7);
  const BufferId to = b.tensor(ProgramBuffer::Kind::target, Rank(1), kSlot, 2 * kBytes);
  std::vector<StepId> unpacked;
  for (Index half = 0; half < 2; ++half) {
    const ProgramMessage m{
        Rank(0), static_cast<std::uint64_t>(half), false, {Builder::kStaging, 0}, kBytes};
    if (what == Breaks::receiving_waits_for_unpacking) unpacked.clear();
    const StepId received = b.exchange(std::span(&m, 1), kBytes, 0, unpacked);
    const Index wanted = what == Breaks::unpacks_all ? kBytes / 2 : kBytes;
    const Index at = what == Breaks::unpacks_once ? 0 : half * kBytes;
    if (what == Breaks::reads_own_scratch) {
      b.copy({bytes(0, at, wanted), Builder::kScratch, to, {}}, false);
    } else {
      b.copy({bytes(0, at, wanted), Builder::kStaging, to, {}}, false);
    }
    std::vector<StepId> waits{received};
    if (what == Breaks::unpacking_waits_for_receiving) waits.clear();
    unpacked = {b.tile(wanted, wanted, waits)};
  }
  b.barrier(b.last_steps());
  return std::move(b).finish(kBytes, kBytes);
}

std::string said(const Result<>& result) { return result ? "" : result.error().message; }

const TargetBytes& all_of_it() {
  static const TargetBytes bytes{{{Rank(1), kSlot}, {Interval(0, 2 * kBytes)}}};
  return bytes;
}

std::string check_both(Breaks what) {
  const Program programs[] = {sender(what), receiver(what)};
  ProgramExpectations receives;
  receives.delivers = &all_of_it();
  if (auto wrong = said(check_program(programs[0])); !wrong.empty()) return wrong;
  if (auto wrong = said(check_program(programs[1], receives)); !wrong.empty()) return wrong;
  return said(check_programs(programs));
}

void expect_law(const std::string& law, const std::string& error) {
  EXPECT_NE(error.find(law), std::string::npos) << "error: " << error;
}

TEST(ProgramLaws, hold_of_whole_programs) {
  EXPECT_EQ(check_both(Breaks::nothing), "");
  const auto plain = plain_programs(), converted = converted_programs();
  for (const auto* programs : {&plain, &converted})
    for (const Program& p : *programs) EXPECT_EQ(said(check_program(p)), "");
}

TEST(ProgramLaws, name_steps_that_do_not_wait_for_the_bytes_they_use) {
  for (const Breaks what :
       {Breaks::send_waits_for_packing, Breaks::packing_waits_for_sending,
        Breaks::unpacking_waits_for_receiving, Breaks::receiving_waits_for_unpacking})
    expect_law("law 3", check_both(what));
}

TEST(ProgramLaws, name_bytes_that_are_read_before_they_are_written) {
  expect_law("law 4", check_both(Breaks::packs_all));
  expect_law("law 4", check_both(Breaks::reads_own_scratch));
}

/// Rank 1 receives bytes in place and sends them to rank 2.
Program relay(bool before_they_arrive, bool waits) {
  Builder b(Rank(1), 7);
  const BufferId to = b.tensor(ProgramBuffer::Kind::target, Rank(1), kSlot, kBytes);
  const ProgramMessage in{Rank(0), 0, false, {to, 0}, kBytes};
  const ProgramMessage out{Rank(2), 0, true, {to, 0}, kBytes};
  const StepId first = b.exchange(std::span(before_they_arrive ? &out : &in, 1), kBytes, 0, {});
  std::vector<StepId> after{first};
  if (!waits) after.clear();
  b.exchange(std::span(before_they_arrive ? &in : &out, 1), kBytes, 0, after);
  b.barrier(b.last_steps());
  return std::move(b).finish(0, 0);
}

TEST(ProgramLaws, name_relays_that_send_before_they_have) {
  EXPECT_EQ(said(check_program(relay(false, true))), "");
  expect_law("law 3", said(check_program(relay(false, false))));
  expect_law("law 4", said(check_program(relay(true, true))));
}

TEST(ProgramLaws, name_bytes_that_are_delivered_twice_or_never) {
  expect_law("law 5", check_both(Breaks::unpacks_once));
  expect_law("law 5", check_both(Breaks::unpacks_all));
  // A rank that delivers nothing of what the plan does, and one that delivers more.
  ProgramExpectations receives;
  receives.delivers = &all_of_it();
  Builder idle(Rank(1), 7);
  idle.barrier({});
  expect_law("law 5", said(check_program(std::move(idle).finish(0, 0), receives)));
  const TargetBytes none;
  receives.delivers = &none;
  expect_law("law 5", said(check_program(receiver(Breaks::nothing), receives)));
}

TEST(ProgramLaws, hold_staging_and_scratch_below_the_cap) {
  ProgramExpectations expected;
  expected.threads = 2;
  expected.cap = 3 * kBytes;
  EXPECT_EQ(said(check_program(receiver(Breaks::nothing), expected)), "");
  expected.cap = 3 * kBytes - 1;
  expect_law("law 6", said(check_program(receiver(Breaks::nothing), expected)));
}

/// Changes the receiver of a group that keeps the laws.
template <class Change>
std::string changed(Change&& change) {
  std::vector<Program> programs{sender(Breaks::nothing), receiver(Breaks::nothing)};
  change(programs);
  return said(check_programs(programs));
}

TEST(ProgramLaws, pair_each_message_and_barrier) {
  EXPECT_EQ(changed([](auto&) {}), "");
  expect_law("law 7", changed([](auto& p) { p[1].messages[1].id = 5; }));
  expect_law("law 7", changed([](auto& p) { p[1].messages[1].id = 0; }));
  expect_law("law 7", changed([](auto& p) { p[1].messages[1].bytes = kBytes - 1; }));
  expect_law("law 7", changed([](auto& p) {
               for (ProgramMessage& m : p[1].messages) m.is_send = true;
             }));
  expect_law("law 7", changed([](auto& p) {
               p[1].steps.pop_back();
               p[1].first_wait.pop_back();
               p[1].waits.resize(p[1].first_wait.back());
             }));
  EXPECT_NE(changed([](auto& p) { p[1].plan_digest = 8; }), "");
  EXPECT_NE(changed([](auto& p) { p[1].rank = Rank(0); }), "");
}

/// Receives one message, and then sends another.
Program after_receiving(Rank me, Rank peer) {
  Builder b(me, 7);
  const auto id = static_cast<std::uint64_t>(me.value());
  const ProgramMessage first{peer, 1 - id, false, {Builder::kStaging, 0}, kBytes};
  const ProgramMessage second{peer, id, true, {Builder::kStaging, 0}, kBytes};
  const StepId received = b.exchange(std::span(&first, 1), kBytes, 0, {});
  b.exchange(std::span(&second, 1), kBytes, 0, {received});
  b.barrier(b.last_steps());
  return std::move(b).finish(kBytes, 0);
}

TEST(ProgramLaws, name_a_group_that_waits_for_itself) {
  const Program programs[] = {after_receiving(Rank(0), Rank(1)), after_receiving(Rank(1), Rank(0))};
  for (const Program& p : programs) EXPECT_EQ(said(check_program(p)), "");
  expect_law("waits for itself", said(check_programs(programs)));
}

TEST(ProgramLaws, know_that_exchanges_begin_in_order) {
  // Rank 0 sends two messages, one after the other; rank 1 receives them in the other order.
  std::vector<Program> programs;
  for (const bool crossed : {false, true}) {
    programs.clear();
    for (int me = 0; me < 2; ++me) {
      Builder b(Rank(me), 7);
      std::vector<ProgramMessage> both;
      for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{1}})
        both.push_back({Rank(1 - me), id, me == 0, {Builder::kStaging, 0}, kBytes});
      if (crossed && me == 1) std::swap(both[0], both[1]);
      StepId last = b.exchange(std::span(&both[0], 1), kBytes, 0, {});
      last = b.exchange(std::span(&both[1], 1), kBytes, 0, {last});
      b.barrier({last});
      programs.push_back(std::move(b).finish(kBytes, 0));
    }
    EXPECT_EQ(said(check_programs(programs)).empty(), !crossed);
  }
}

/// Two ranks with two messages, each an exchange of its own that waits for nothing. `list`: what a
/// rank has first and second, as (message, whether it is sent).
std::vector<Program> two_exchanges(int round_bits, const std::vector<std::pair<int, bool>>& list_0,
                                   const std::vector<std::pair<int, bool>>& list_1) {
  std::vector<Program> programs;
  for (int me = 0; me < 2; ++me) {
    Builder b(Rank(me), 7);
    std::vector<StepId> last;
    for (const auto& [id, sends] : me == 0 ? list_0 : list_1) {
      const ProgramMessage m{
          Rank(1 - me), static_cast<std::uint64_t>(id), sends, {Builder::kStaging, 0}, kBytes};
      last.push_back(b.exchange(std::span(&m, 1), kBytes, 0, {}));
    }
    b.barrier(last);
    b.set_round_bits(round_bits);
    programs.push_back(std::move(b).finish(kBytes, 0));
  }
  return programs;
}

TEST(ProgramLaws, name_a_group_that_waits_for_itself_in_rounds) {
  // Two messages one way, in one order or not; and one each way, which both ranks send first.
  for (const int bits : {-1, 3}) {
    EXPECT_EQ(
        said(check_programs(two_exchanges(bits, {{0, true}, {1, true}}, {{0, false}, {1, false}}))),
        "");
    const auto crossed =
        said(check_programs(two_exchanges(bits, {{0, true}, {1, true}}, {{1, false}, {0, false}})));
    const auto sent_first =
        said(check_programs(two_exchanges(bits, {{0, true}, {1, false}}, {{1, true}, {0, false}})));
    if (bits < 0) {
      EXPECT_EQ(crossed + sent_first, "");
    } else {
      expect_law("law 8", crossed);
      expect_law("law 8", sent_first);
    }
  }
}

TEST(ProgramLaws, name_a_rank_that_cuts_other_rounds) {
  auto programs = two_exchanges(3, {{0, true}}, {{0, false}});
  programs[1].round_bits = 2;
  expect_law("law 8: rank 1 has round_bits 2, rank 0 has 3", said(check_programs(programs)));
}

}  // namespace
}  // namespace reshard::program
