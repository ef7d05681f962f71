// SPDX-License-Identifier: Apache-2.0
// Protects: every grain is counted once, by the thread that copies or withdraws it, and memory is
// in use until nobody copies.
#include "reshard/transport/inproc/mailbox.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "reshard/transport/inproc/group.h"

namespace reshard::inproc {
namespace {

using Bytes = std::vector<std::byte>;

/// Rank 0 sends to rank 1, through the mailbox of rank 1 only.
class MailboxTest : public testing::Test {
 protected:
  void post(std::size_t bytes) {
    from_.assign(bytes, std::byte{1});
    to_.assign(bytes, std::byte{0});
    sender_.rank = Rank{0};
    receiver_.rank = Rank{1};
    sender_.sends = {{Rank{1}, MessageId{1}, from_}};
    receiver_.recvs = {{Rank{0}, MessageId{1}, to_}};
    sender_.left = receiver_.left = grains(bytes);
    mailbox_.post(std::span<const Send>(sender_.sends), sender_, wake_);
    mailbox_.post(std::span<const Recv>(receiver_.recvs), receiver_, wake_);
  }

  std::vector<std::atomic<bool>> closed_ = std::vector<std::atomic<bool>>(2);
  Mailbox mailbox_{Rank{1}, closed_};
  Wake wake_{2};
  Bytes from_, to_;
  Step sender_, receiver_;
  std::array<Slice, 4> slices_;
};

TEST_F(MailboxTest, grains_count_what_take_gives) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kGrain - 1, kGrain, kGrain + 1,
                                  3 * kGrain, 3 * kGrain + 7}) {
    post(bytes);
    std::size_t copied = 0;
    while (mailbox_.has_work()) {
      const std::size_t n = mailbox_.take(slices_);
      ASSERT_GT(n, 0U);
      const auto mine = std::span(slices_).first(n);
      for (const Slice& slice : mine) copied += slice.bytes;
      EXPECT_LE(mine.front().bytes, kGrain);
      copy(mine);
      finish(mine, wake_);
    }
    EXPECT_EQ(copied, bytes);
    EXPECT_EQ(sender_.left, 0) << bytes;
    EXPECT_EQ(receiver_.left, 0) << bytes;
    EXPECT_EQ(to_, from_);
  }
}

TEST_F(MailboxTest, withdrawing_leaves_what_is_being_copied) {
  post(3 * kGrain + 1);
  const std::size_t n = mailbox_.take(slices_);
  ASSERT_EQ(n, 1U);
  EXPECT_EQ(mailbox_.withdraw(receiver_, wake_).messages, 1);
  EXPECT_FALSE(mailbox_.has_work());
  EXPECT_EQ(receiver_.left, 1);
  EXPECT_EQ(sender_.left, 1);
  // The sender learns who withdrew; the receiver knows.
  ASSERT_TRUE(sender_.error());
  EXPECT_EQ(sender_.error()->message,
            "rank 1 gave up a message from rank 0 to rank 1 before it was complete");
  EXPECT_FALSE(receiver_.error());
  finish(std::span(slices_).first(n), wake_);
  EXPECT_EQ(receiver_.left, 0);
  EXPECT_EQ(sender_.left, 0);
}

TEST(LentStep, gives_its_memory_back_only_when_nobody_copies_it) {
  const auto group = std::make_shared<SharedGroup>(2);
  const auto alice = std::make_shared<Member>(group, Rank{0});
  const auto bob = std::make_shared<Member>(group, Rank{1});
  Bytes from(4 * kGrain), to(4 * kGrain);
  const Send send{Rank{1}, MessageId{1}, from};
  const Recv recv{Rank{0}, MessageId{1}, to};
  LentStep receiver(bob, {}, {&recv, 1});
  auto sender = std::make_unique<LentStep>(alice, std::span(&send, 1), std::span<const Recv>());
  std::array<Slice, 1> slice;
  ASSERT_EQ(group->mailboxes[1].take(slice), 1U);

  std::atomic<bool> going{false}, copied{false};
  std::jthread copier([&] {
    going.wait(false);
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    copied = true;
    Wake wake(2);
    finish(slice, wake);
    wake.notify(group->event_counts);
  });
  going = true;
  going.notify_all();
  sender.reset();
  EXPECT_TRUE(copied);
  EXPECT_FALSE(receiver.wait(Deadline::never()));
}

}  // namespace
}  // namespace reshard::inproc
