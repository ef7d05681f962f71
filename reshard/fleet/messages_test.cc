// SPDX-License-Identifier: Apache-2.0
// Law: messages arrive as they were sent, and bytes that are no message are refused.
#include "reshard/fleet/messages.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace reshard::fleet {
namespace {

using Bytes = std::vector<std::byte>;

Action some_action() {
  Action a{.kind = Action::Kind::order, .version = 7, .round = 3, .epoch = 2, .rank = 5};
  a.address = "[::1]:4000";
  a.participants = {{"trainer", "megatron:tp=2", 0, 2, true}, {"engine", "vllm:tp=4", 2, 4, false}};
  a.holders = {"engine", "another"};
  a.text = "why";
  a.code = Code::deadline;
  return a;
}

bool parses(std::span<const std::byte> bytes, bool of_member) {
  return of_member ? parse_member_message(bytes).has_value()
                   : parse_server_message(bytes).has_value();
}

/// First those of members.
constexpr std::size_t kMemberMessages = 4;
std::vector<Bytes> all_messages() {
  const JoinRequest join{.unit = "a",
                         .role = Role::trainer,
                         .rank = 1,
                         .size = 2,
                         .layout = "hf",
                         .version = kNoVersion,
                         .address = "host:1"};
  return {encode(MemberMessage{join}),
          encode(MemberMessage{ReadyMessage{}}),
          encode(MemberMessage{PublishMessage{4, 2}}),
          encode(MemberMessage{ReportMessage{3, true, kNoVersion, "why"}}),
          encode(ServerMessage{WelcomeMessage{}}),
          encode(ServerMessage{some_action()})};
}

TEST(FleetMessages, an_action_arrives_as_it_was_sent) {
  const Action sent = some_action();
  const auto message = parse_server_message(encode(ServerMessage{sent}));
  ASSERT_TRUE(message.has_value());
  const auto& got = std::get<Action>(*message);
  EXPECT_EQ(got.kind, sent.kind);
  EXPECT_EQ(got.version, sent.version);
  EXPECT_EQ(got.round, sent.round);
  EXPECT_EQ(got.epoch, sent.epoch);
  EXPECT_EQ(got.rank, sent.rank);
  EXPECT_EQ(got.address, sent.address);
  EXPECT_EQ(got.participants, sent.participants);
  EXPECT_EQ(got.holders, sent.holders);
  EXPECT_EQ(got.text, sent.text);
  EXPECT_EQ(got.code, sent.code);
}

TEST(FleetMessages, a_report_arrives_as_it_was_sent) {
  const auto message =
      parse_member_message(encode(MemberMessage{ReportMessage{3, true, kNoVersion, "why"}}));
  ASSERT_TRUE(message.has_value());
  const auto& got = std::get<ReportMessage>(*message);
  EXPECT_EQ(got.round, 3);
  EXPECT_TRUE(got.has);
  EXPECT_EQ(got.keeps, kNoVersion);
  EXPECT_EQ(got.error, "why");
}

TEST(FleetMessages, a_message_that_lacks_bytes_or_has_more_is_refused) {
  const std::vector<Bytes> all = all_messages();
  for (const Bytes& whole : all) {
    EXPECT_TRUE(parses(whole, &whole < &all[kMemberMessages]));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const std::span part = std::span(whole).first(size);
      EXPECT_FALSE(parses(part, &whole < &all[kMemberMessages]));
    }
    Bytes longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(parses(longer, &whole < &all[kMemberMessages]));
  }
}

// Sizes in the bytes are never believed: a wrong one neither allocates nor reads beyond the end.
RC_GTEST_PROP(FleetMessages, bytes_that_were_changed_are_parsed_or_refused, ()) {
  const std::vector<Bytes> all = all_messages();
  Bytes bytes = *rc::gen::elementOf(all);
  const auto changes = *rc::gen::inRange(1, 8);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<std::size_t>(0, bytes.size());
    bytes[at] = static_cast<std::byte>(*rc::gen::inRange(0, 256));
  }
  if (const auto message = parse_member_message(bytes))
    RC_ASSERT(encode(*message).size() <= bytes.size());
  if (const auto message = parse_server_message(bytes))
    RC_ASSERT(encode(*message).size() <= bytes.size());
}

}  // namespace
}  // namespace reshard::fleet
