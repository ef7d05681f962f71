// SPDX-License-Identifier: Apache-2.0
// Protects: an invalid frame only ends the connection with its sender, and late records of a
// correct peer are harmless.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "reshard/transport/messages/matcher.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"
#include "reshard/transport/testing/script_wire_testutil.h"

namespace reshard {
namespace {

using messages::FrameReader;
using messages::Kind;
using messages::Method;
using messages::Record;

Bytes frame_of(const std::vector<Record>& records) {
  Bytes frame;
  for (const Record& record : records) messages::append(frame, record);
  return frame;
}

TEST(EngineFrames, what_is_appended_is_read) {
  const Bytes text(13, std::byte{'x'});
  std::vector<Record> records;
  for (int kind = 1; kind <= static_cast<int>(Kind::bye); ++kind) {
    Record record{static_cast<Kind>(kind), 0, {}, {}};
    for (std::size_t i = 0; i < messages::num_numbers(record.kind); ++i)
      record.numbers[i] = mix64(static_cast<std::uint64_t>(kind) + i);
    records.push_back(record);
  }
  records.push_back({Kind::payload, 0, {1, 2}, text});
  records.push_back({Kind::cts, static_cast<std::uint8_t>(Method::tagged), {1, 2, 3}, text});
  records.push_back({Kind::bye, 0, {}, text});
  const Bytes frame = frame_of(records);
  FrameReader reader(frame);
  for (const Record& want : records) {
    const auto got = reader.next();
    ASSERT_TRUE(got) << outcome(got);
    EXPECT_EQ(got->kind, want.kind);
    EXPECT_EQ(got->detail, want.detail);
    EXPECT_TRUE(std::ranges::equal(got->numbers, want.numbers));
    EXPECT_TRUE(std::ranges::equal(got->tail, want.tail));
  }
  EXPECT_TRUE(reader.at_end());
}

TEST(EngineFrames, every_cut_and_every_changed_byte_is_read_or_refused_within_the_frame) {
  const Bytes text(13, std::byte{'x'});
  const Bytes whole = frame_of({{Kind::rts, 0, {1, 2, 3}, text}, {Kind::done, 0, {7}}});
  const auto read = [](Bytes frame) {
    FrameReader reader(frame);
    while (!reader.at_end()) {
      const auto record = reader.next();
      if (!record) return record.error().code == Code::corrupt;
      if (!record->tail.empty() &&
          (record->tail.data() < frame.data() ||
           record->tail.data() + record->tail.size() > frame.data() + frame.size()))
        return false;
    }
    return true;
  };
  for (std::size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_TRUE(read(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut))));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      Bytes changed = whole;
      changed[at] = static_cast<std::byte>(value);
      EXPECT_TRUE(read(changed)) << at;
    }
  }
}

/// Rank 0 of 3; the test plays its peers.
class EngineHostile : public testing::Test {
 protected:
  void deliver(Rank from, const std::vector<Record>& records) {
    script_->to_deliver.push_back({from, frame_of(records)});
  }
  void poll(Event& event) {
    while (!script_->to_deliver.empty()) (void)event.test();
    (void)event.test();
  }
  /// The records sent to a rank, in order, without their tails.
  std::vector<Record> sent(Rank to) const {
    std::vector<Record> out;
    for (const auto& frame : script_->sent) {
      FrameReader reader(frame.bytes);
      while (frame.from == to && !reader.at_end()) out.push_back(*reader.next());
    }
    return out;
  }

  std::shared_ptr<WireScript> script_ = std::make_shared<WireScript>();
  LoneControl control_{3};
  std::unique_ptr<Transport> transport_ =
      messages::make_transport(std::make_unique<ScriptWire>(script_, 3), control_);
  Bytes big_ = Bytes(100'000), other_ = Bytes(100'000), small_ = Bytes(8);
};

TEST_F(EngineHostile, what_no_correct_peer_says_ends_the_link_with_it_alone) {
  const Bytes large(messages::kEagerBytes + 1);
  const std::map<std::string, std::vector<Record>> lies = {
      {"a token of nobody", {{Kind::done, 0, {0xffff'ffff'ffff}}}},
      {"a CTS of nobody", {{Kind::cts, 3, {1ULL << 40, 0, 0}}}},
      {"a CTS with an unknown method", {{Kind::cts, 0, {0, 0, 0}}}},
      {"a frame for too much", {{Kind::cts, 1, {0, 0, 0}}}},
      {"bytes without a CTS", {{Kind::data, 0, {1}, small_}}},
      {"a put without a CTS", {{Kind::put_done, 0, {1}}}},
      {"a refusal of no kind", {{Kind::refuse, static_cast<std::uint8_t>(Code::io), {0}}}},
      {"too large a payload", {{Kind::payload, 0, {5, 5}, large}}},
      {"another's message", {{Kind::done, 0, {2}}}},
      {"a receive for a send", {{Kind::done, 0, {1}}}},
      {"a retry with nothing to pull", {{Kind::retry, 0, {0}}}},
  };
  for (const auto& [what, records] : lies) {
    SCOPED_TRACE(what);
    script_ = std::make_shared<WireScript>();
    transport_ = messages::make_transport(std::make_unique<ScriptWire>(script_, 3), control_);
    const Send to_one{Rank{1}, MessageId{1}, big_};
    const Recv from_one{Rank{1}, MessageId{1}, other_};
    const Send to_two{Rank{2}, MessageId{1}, big_};
    // Their tokens are 0, 1 and 2.
    auto send = transport_->exchange({&to_one, 1}, {});
    auto recv = transport_->exchange({}, {&from_one, 1});
    auto bystander = transport_->exchange({&to_two, 1}, {});
    ASSERT_TRUE(send && recv && bystander);
    deliver(Rank{1}, records);
    poll(**bystander);
    expect_error((*recv)->wait(patient()), Code::corrupt, {"rank 1"});
    expect_error((*send)->wait(patient()), Code::corrupt, {"rank 1"});
    EXPECT_EQ((*bystander)->test(), false);
    EXPECT_EQ(sent(Rank{1}).back().kind, Kind::bye);
    // Further frames from it are ignored.
    deliver(Rank{1}, {{Kind::payload, 0, {9, 9}, small_}});
    poll(**bystander);
    EXPECT_EQ((*bystander)->test(), false);
  }
}

TEST_F(EngineHostile, payloads_that_nobody_expects_are_kept_up_to_the_window) {
  const Bytes payload(messages::kEagerBytes);
  const Recv recv{Rank{1}, MessageId{1}, small_};
  auto event = transport_->exchange({}, {&recv, 1});
  const std::uint64_t most = messages::kEagerWindow / messages::kEagerBytes;
  for (std::uint64_t i = 0; i < most; ++i)
    deliver(Rank{1}, {{Kind::payload, 0, {i, 100 + i}, payload}});
  poll(**event);
  EXPECT_EQ((*event)->test(), false);
  deliver(Rank{1}, {{Kind::payload, 0, {most, 100 + most}, payload}});
  poll(**event);
  expect_error((*event)->test(), Code::corrupt, {"rank 1", "bytes of unexpected messages"});
}

TEST_F(EngineHostile, late_words_about_a_withdrawn_message_are_ignored) {
  const Send send{Rank{1}, MessageId{1}, big_};
  const Recv recv{Rank{1}, MessageId{2}, small_};
  {
    auto gone = transport_->exchange({&send, 1}, {});
    ASSERT_TRUE(gone);
  }
  EXPECT_EQ(sent(Rank{1}).back().kind, Kind::cancel);
  auto event = transport_->exchange({}, {&recv, 1});
  deliver(Rank{1}, {{Kind::cts, static_cast<std::uint8_t>(Method::tagged), {0, 0, 0}},
                    {Kind::done, 0, {0}},
                    {Kind::refuse, static_cast<std::uint8_t>(Code::aborted), {0}},
                    {Kind::cancel, 0, {77, 77}}});
  poll(**event);
  EXPECT_EQ((*event)->test(), false);
  EXPECT_TRUE(script_->bulks.empty());
  deliver(Rank{1}, {{Kind::payload, 0, {3, 2}, Bytes(8, std::byte{6})}});
  EXPECT_EQ(outcome((*event)->wait(patient())), "");
  EXPECT_EQ(small_, Bytes(8, std::byte{6}));
}

TEST_F(EngineHostile, a_message_that_is_given_up_after_an_abort_carries_its_reason) {
  const Send send{Rank{1}, MessageId{1}, big_};
  auto event = transport_->exchange({&send, 1}, {});
  ASSERT_TRUE(event);
  control_.abort("rank 2 died");
  event->reset();
  ASSERT_EQ(sent(Rank{1}).back().kind, Kind::cancel);
  const Bytes& frame = script_->sent.back().bytes;
  const std::string_view text(reinterpret_cast<const char*>(frame.data()), frame.size());
  EXPECT_THAT(text, testing::HasSubstr("rank 2 died"));
}

TEST_F(EngineHostile, no_more_than_a_few_bulks_are_granted_at_a_time) {
  std::vector<Recv> recvs;
  for (std::uint64_t i = 0; i < 30; ++i)
    recvs.push_back({Rank{1}, MessageId{i}, std::span(big_).subspan(i * 3000, 3000)});
  Bytes room(30 * 5000);
  for (std::uint64_t i = 30; i < 60; ++i)
    recvs.push_back({Rank{1}, MessageId{i}, std::span(room).subspan((i - 30) * 5000, 5000)});
  auto event = transport_->exchange({}, recvs);
  ASSERT_TRUE(event);
  for (std::uint64_t i = 0; i < 60; ++i)
    deliver(Rank{1}, {{Kind::rts, 0, {i, i, recvs[i].bytes.size()}}});
  poll(**event);
  EXPECT_EQ(script_->bulks.size(), static_cast<std::size_t>(messages::kMaxBulks));
  // Withdrawing bulks that the wire has started and does not end closes it.
  event->reset();
  EXPECT_TRUE(script_->closed);
  expect_error(transport_->exchange({}, {}), Code::aborted);
}

TEST_F(EngineHostile, a_text_of_a_peer_is_one_line) {
  const Send send{Rank{1}, MessageId{1}, big_};
  auto event = transport_->exchange({&send, 1}, {});
  const std::string text = "first\nsecond\x1b[31m";
  deliver(Rank{1}, {{Kind::bye, 0, {}, std::as_bytes(std::span(text))}});
  const auto result = (*event)->wait(patient());
  expect_error(result, Code::aborted, {"first?second?"});
}

}  // namespace
}  // namespace reshard
