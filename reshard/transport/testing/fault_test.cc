// SPDX-License-Identifier: Apache-2.0
// Protects: each fault affects the message that it names and no other, identically in every run.
#include "reshard/transport/testing/fault_testutil.h"

#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <string>

#include "reshard/base/hash.h"
#include "reshard/transport/inproc/inproc.h"

namespace reshard {
namespace {

using Bytes = std::vector<std::byte>;
using Kind = Fault::Kind;

/// One rank that sends itself messages through a faulty transport, a step of `kMessages` at a time.
class FaultTest : public testing::Test {
 protected:
  static constexpr std::size_t kMessages = 6, kBytes = 40;

  void use(FaultPlan plan) {
    group_ = std::make_unique<InprocGroup>(*InprocGroup::create(1));
    control_ = *group_->control(Rank{0});
    transport_ = make_faulty(*group_->transport(Rank{0}), std::move(plan));
    in_.assign(kMessages, Bytes(kBytes));
  }

  Result<std::unique_ptr<Event>> start(unsigned char fill) {
    out_.clear();
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    for (std::size_t i = 0; i < kMessages; ++i) {
      out_.emplace_back(kBytes, static_cast<std::byte>(fill + i));
      sends.push_back({Rank{0}, MessageId{i}, out_[i]});
      recvs.push_back({Rank{0}, MessageId{i}, in_[i]});
    }
    return transport_->exchange(sends, recvs);
  }

  Result<> step(unsigned char fill, Deadline deadline = Deadline::never()) {
    auto event = RESHARD_TRY(start(fill));
    return event->wait(deadline);
  }

  std::vector<std::size_t> wrong() const {
    std::vector<std::size_t> at;
    for (std::size_t i = 0; i < kMessages; ++i)
      if (in_[i] != out_[i]) at.push_back(i);
    return at;
  }

  std::unique_ptr<InprocGroup> group_;
  std::unique_ptr<ControlPlane> control_;
  std::vector<Bytes> out_, in_;
  std::unique_ptr<Transport> transport_;
};

TEST_F(FaultTest, without_faults_everything_passes) {
  use({});
  EXPECT_TRUE(step(1));
  EXPECT_TRUE(wrong().empty());
  EXPECT_EQ(transport_->name(), "inproc");
  EXPECT_TRUE(transport_->capabilities().direct);
}

TEST_F(FaultTest, a_dropped_message_is_missed_by_its_receiver) {
  use({.faults = {{Kind::drop, kMessages + 2}}});
  EXPECT_TRUE(step(1));
  const auto result = step(2, Deadline::after(std::chrono::milliseconds(20)));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::deadline);
  EXPECT_NE(result.error().message.find("message 2 "), std::string::npos) << result.error().message;
}

TEST_F(FaultTest, a_delayed_message_comes_at_its_poll_and_not_before) {
  use({.faults = {{Kind::delay, 4, 3}}});
  auto event = *start(1);
  EXPECT_EQ(event->test(), false);
  EXPECT_EQ(event->test(), false);
  EXPECT_EQ(wrong(), std::vector<std::size_t>{4});
  while (!*event->test()) continue;
  EXPECT_TRUE(wrong().empty());
}

TEST_F(FaultTest, a_wait_outlasts_every_delay) {
  use({.faults = {{Kind::delay, 0, 1}, {Kind::delay, 1, 7}, {Kind::delay, 5, 2}}});
  EXPECT_TRUE(step(1));
  EXPECT_TRUE(wrong().empty());
}

TEST_F(FaultTest, a_reordered_step_still_arrives) {
  use({.faults = {{Kind::reorder, 3}}, .seed = 9});
  EXPECT_TRUE(step(1));
  EXPECT_TRUE(wrong().empty());
}

TEST_F(FaultTest, a_truncated_message_is_a_size_error) {
  use({.faults = {{Kind::truncate, 1}}});
  const auto result = step(1);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Code::invalid_argument);
  EXPECT_NE(result.error().message.find("39 bytes"), std::string::npos) << result.error().message;
}

TEST_F(FaultTest, a_corrupt_message_differs_in_one_bit_and_the_source_does_not) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    use({.faults = {{Kind::corrupt, 3}}, .seed = seed});
    EXPECT_TRUE(step(1));
    EXPECT_EQ(wrong(), std::vector<std::size_t>{3});
    EXPECT_EQ(out_[3], Bytes(kBytes, std::byte{4}));
    int bits = 0;
    for (std::size_t i = 0; i < kBytes; ++i)
      bits += std::popcount(static_cast<unsigned>(in_[3][i] ^ out_[3][i]));
    EXPECT_EQ(bits, 1);
  }
}

TEST_F(FaultTest, a_killed_rank_is_gone) {
  use({.faults = {{Kind::kill, kMessages}}, .on_kill = [this] { control_->close(); }});
  EXPECT_TRUE(step(1));
  EXPECT_FALSE(step(2));
  EXPECT_FALSE(step(3));
  EXPECT_FALSE(control_->barrier(Deadline::never()));
}

TEST_F(FaultTest, a_failed_step_gives_all_its_memory_back) {
  use({.faults = {{Kind::truncate, 1}, {Kind::reorder, 0}, {Kind::delay, 3, 2}}});
  auto event = *start(1);
  Result<bool> done = false;
  while (done && !*done) done = event->test();
  in_.clear();  // A sanitizer detects later writes.
  out_.clear();
  EXPECT_FALSE(event->wait(Deadline::never()));
  EXPECT_FALSE(event->test());
}

TEST(RandomFaults, depend_on_seed_and_rank_alone) {
  const Kind kinds[] = {Kind::drop, Kind::corrupt, Kind::delay};
  const auto text = [&](std::uint64_t seed, int rank) {
    std::string all;
    for (const Fault& f : random_faults(seed, Rank{rank}, kinds, 10, 100).faults) {
      EXPECT_LT(f.message, 100U);
      all += std::to_string(static_cast<int>(f.kind)) + "@" + std::to_string(f.message) + " ";
    }
    return all;
  };
  EXPECT_EQ(text(1, 0), text(1, 0));
  EXPECT_NE(text(1, 0), text(1, 1));
  EXPECT_NE(text(1, 0), text(2, 0));
}

}  // namespace
}  // namespace reshard
