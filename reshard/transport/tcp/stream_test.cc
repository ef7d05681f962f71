// SPDX-License-Identifier: Apache-2.0
// Protects: a peer without the secret gets no keys, and modified bytes are rejected.
#include "reshard/transport/tcp/stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "reshard/transport/tcp/cipher.h"
#include "reshard/transport/tcp/socket.h"

namespace reshard::tcp {
namespace {

using Bytes = std::vector<std::byte>;

const GroupKey kGroup = group_key("job", *Secret::from_text("sixteen characters"));

/// The keys of a regular handshake.
SessionKeys handshake(const GroupKey& rank, const GroupKey& coordinator) {
  const ClientHandshake client(rank, Instance{});
  const Reply reply = reply_to(client.hello(), coordinator, random_instance());
  EXPECT_EQ(reply.verdict, Verdict::welcome);
  const auto keys = client.finish(reply.answer);
  EXPECT_TRUE(keys);
  if (!keys) return {};
  EXPECT_EQ(keys->from_coordinator, reply.keys.from_coordinator);
  EXPECT_EQ(keys->from_rank, reply.keys.from_rank);
  return *keys;
}

/// The bytes that a writer sends for these frames.
Bytes sent(const Key& key, const std::vector<Frame>& frames) {
  auto ends = socket_pair();
  EXPECT_TRUE(ends);
  SecureWriter writer(key);
  for (const Frame& frame : frames) writer.queue(frame);
  Bytes out;
  for (bool idle = false; !idle;) {
    EXPECT_EQ(writer.flush(ends->first.get()), Flow::open);
    idle = writer.idle();
    Bytes some(1 << 16);
    for (ssize_t n; (n = ::recv(ends->second.get(), some.data(), some.size(), 0)) > 0;)
      out.insert(out.end(), some.begin(), some.begin() + n);
  }
  return out;
}

struct Read {
  Flow flow = Flow::open;
  std::vector<Frame> frames;
};
Read read(const Key& key, std::span<const std::byte> bytes, std::size_t piece = 1 << 20,
          std::size_t max = kMaxFrameBytes) {
  SecureReader reader(key);
  Read out;
  while (!bytes.empty() && out.flow == Flow::open) {
    const auto part = bytes.first(std::min(piece, bytes.size()));
    bytes = bytes.subspan(part.size());
    out.flow = reader.feed(part, max, [&](Frame frame) {
      out.frames.push_back(std::move(frame));
      return true;
    });
  }
  return out;
}

Frame frame(std::size_t bytes) { return {Kind::meet, 7, 8, 9, "text", Bytes(bytes, std::byte{5})}; }

TEST(ControlStream, frames_of_any_size_arrive_in_any_pieces) {
  const Key key = handshake(kGroup, kGroup).from_rank;
  const std::vector<std::size_t> sizes = {0, 1, 1000, kChunkBytes, 3 * kChunkBytes + 17};
  std::vector<Frame> frames;
  for (const std::size_t size : sizes) frames.push_back(frame(size));
  const Bytes bytes = sent(key, frames);
  for (const std::size_t piece : {1UL, 7UL, 1000UL, 1UL << 20}) {
    const Read got = read(key, bytes, piece);
    EXPECT_EQ(got.flow, Flow::open);
    ASSERT_EQ(got.frames.size(), sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(got.frames[i].kind, Kind::meet);
      EXPECT_EQ(got.frames[i].id, 7U);
      EXPECT_EQ(got.frames[i].a, 8U);
      EXPECT_EQ(got.frames[i].b, 9U);
      EXPECT_EQ(got.frames[i].text, "text");
      EXPECT_EQ(got.frames[i].bytes, Bytes(sizes[i], std::byte{5}));
    }
  }
}

TEST(ControlStream, a_changed_byte_anywhere_gives_no_frame) {
  const Key key = handshake(kGroup, kGroup).from_rank;
  const Bytes bytes = sent(key, {frame(20)});
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    Bytes changed = bytes;
    changed[at] ^= std::byte{1};
    EXPECT_TRUE(read(key, changed).frames.empty()) << at;
  }
}

TEST(ControlStream, frames_cannot_be_repeated_left_out_or_swapped) {
  const Key key = handshake(kGroup, kGroup).from_rank;
  const Bytes both = sent(key, {frame(20), frame(20)});
  const std::size_t start = 24, one = (both.size() - start) / 2;
  const auto part = [&](std::size_t i) {
    const auto at = both.begin() + static_cast<std::ptrdiff_t>(start + i * one);
    return Bytes(at, at + static_cast<std::ptrdiff_t>(one));
  };
  const auto frames_of = [&](const std::vector<std::size_t>& order) {
    Bytes bytes(both.begin(), both.begin() + start);
    for (const std::size_t i : order) {
      const Bytes next = part(i);
      bytes.insert(bytes.end(), next.begin(), next.end());
    }
    return read(key, bytes).frames.size();
  };
  EXPECT_EQ(frames_of({0, 1}), 2U);
  EXPECT_EQ(frames_of({0, 0}), 1U);
  EXPECT_EQ(frames_of({1}), 0U);
  EXPECT_EQ(frames_of({1, 0}), 0U);
}

TEST(ControlStream, another_key_reads_nothing) {
  const SessionKeys keys = handshake(kGroup, kGroup);
  EXPECT_TRUE(read(keys.from_coordinator, sent(keys.from_rank, {frame(1)})).frames.empty());
  const SessionKeys others = handshake(kGroup, kGroup);
  EXPECT_TRUE(read(others.from_rank, sent(keys.from_rank, {frame(1)})).frames.empty());
}

TEST(ControlStream, lengths_beyond_what_is_allowed_end_the_stream) {
  const Key key = handshake(kGroup, kGroup).from_rank;
  EXPECT_EQ(read(key, sent(key, {frame(kMaxJoinBytes)}), 1 << 20, kMaxJoinBytes).flow, Flow::ended);
  EXPECT_EQ(read(key, sent(key, {frame(kMaxJoinBytes / 2)}), 1 << 20, kMaxJoinBytes).flow,
            Flow::open);
  for (const std::byte byte : {std::byte{0}, std::byte{0x7f}, std::byte{0xff}}) {
    Bytes bytes = sent(key, {});
    bytes.insert(bytes.end(), 4, byte);
    EXPECT_EQ(read(key, bytes).flow, Flow::ended);
  }
}

TEST(ControlCipher, only_who_knows_name_and_secret_is_welcome) {
  const auto verdict = [](const GroupKey& rank, const Instance& named, const Instance& instance) {
    return reply_to(ClientHandshake(rank, named).hello(), kGroup, instance).verdict;
  };
  const Instance mine = random_instance(), other = random_instance();
  const Secret wrong = *Secret::from_text("sixteen Characters");
  EXPECT_EQ(verdict(kGroup, mine, mine), Verdict::welcome);
  EXPECT_EQ(verdict(kGroup, {}, mine), Verdict::welcome);
  EXPECT_EQ(verdict(kGroup, other, mine), Verdict::other_group);
  EXPECT_EQ(verdict(group_key("job", wrong), mine, mine), Verdict::wrong_secret);
  EXPECT_EQ(verdict(group_key("Job", *Secret::from_text("sixteen characters")), mine, mine),
            Verdict::other_group);
}

TEST(ControlCipher, an_answer_that_was_changed_or_is_another_ones_gives_no_keys) {
  const ClientHandshake client(kGroup, Instance{}), other(kGroup, Instance{});
  const Reply reply = reply_to(client.hello(), kGroup, Instance{});
  EXPECT_FALSE(other.finish(reply.answer));
  for (std::size_t at = 0; at < reply.answer.size(); ++at) {
    auto changed = reply.answer;
    changed[at] ^= std::byte{0x80};
    EXPECT_FALSE(client.finish(changed)) << at;
  }
  // The first 8 are looked at before (looks_like_hello).
  for (std::size_t at = 8; at < kHelloBytes; ++at) {
    std::array<std::byte, kHelloBytes> changed;
    std::ranges::copy(client.hello(), changed.begin());
    changed[at] ^= std::byte{1};
    EXPECT_NE(reply_to(changed, kGroup, Instance{}).verdict, Verdict::welcome) << at;
  }
}

TEST(ControlFrame, what_is_no_frame_is_refused) {
  const auto parse = [](const Bytes& bytes) { return parse_frame(bytes).has_value(); };
  const Bytes good = encode(frame(3)).head;
  EXPECT_TRUE(parse(good));
  for (std::size_t size = 0; size < 29; ++size)
    EXPECT_FALSE(parse(Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size))));
  for (const std::byte kind : {std::byte{0}, std::byte{13}, std::byte{255}}) {
    Bytes bad = good;
    bad[0] = kind;
    EXPECT_FALSE(parse(bad));
  }
  Bytes long_text = good;
  long_text[25] = std::byte{0xff};
  EXPECT_FALSE(parse(long_text));
}

TEST(ControlFrame, parts_are_exactly_as_many_as_there_are_ranks) {
  const std::vector<Bytes> parts = {Bytes(3, std::byte{1}), {}, Bytes(5, std::byte{2})};
  const Bytes bytes = encode_parts(parts);
  const auto same = parse_parts(bytes, 3);
  ASSERT_TRUE(same);
  EXPECT_EQ(*same, parts);
  EXPECT_FALSE(parse_parts(bytes, 2));
  EXPECT_FALSE(parse_parts(bytes, 4));
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(parse_parts(std::span(bytes).first(size), 3)) << size;
  Bytes huge = bytes;
  huge[7] = std::byte{0xff};
  EXPECT_FALSE(parse_parts(huge, 3));
}

}  // namespace
}  // namespace reshard::tcp
