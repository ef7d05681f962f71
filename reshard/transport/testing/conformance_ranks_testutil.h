// SPDX-License-Identifier: Apache-2.0
// Building blocks of the conformance suite: groups of ranks, messages, expectations.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/transport/testing/message_memory_testutil.h"
#include "reshard/transport/testing/rank_threads_testutil.h"
#include "reshard/transport/transport.h"

namespace reshard {

/// The control plane and transport of one rank, and where its messages are. The runner owns them;
/// the body may reset the first two to leave early.
struct RankEnds {
  std::unique_ptr<ControlPlane> control;
  std::unique_ptr<Transport> transport;
  MessageMemories memory = host_memories();
  Rank rank() const { return transport->rank(); }
  int size() const { return transport->size(); }
};

using RankBody = std::function<void(RankEnds&)>;

/// A backend as the suite sees it.
struct TransportUnderTest {
  std::string name;
  /// Makes a group of n ranks, runs the body on each at the same time, as threads or as processes,
  /// and destroys a rank's ends when its body returns. Bodies report with gtest's EXPECT and
  /// ASSERT.
  std::function<Result<>(int n, const RankBody& body)> run;
  /// Called by each rank, in its thread or process.
  std::function<MessageMemories()> memory = host_memories;

  /// run(), with messages in that memory.
  Result<> run_with_memory(int n, const RankBody& body) const {
    return run(n, [&](RankEnds& me) {
      me.memory = memory();
      body(me);
    });
  }
};

inline std::ostream& operator<<(std::ostream& out, const TransportUnderTest& t) {
  return out << t.name;
}

/// TransportUnderTest::run for backends with a class Group that has create(n), control(rank) and,
/// called after it, transport(rank).
template <class Group>
Result<> run_group_as_threads(int n, const RankBody& body) {
  Group group = RESHARD_TRY(Group::create(n));
  return run_ranks(n, [&](Rank rank) -> Result<> {
    RankEnds ends{RESHARD_TRY(group.control(rank)), RESHARD_TRY(group.transport(rank))};
    body(ends);
    return {};
  });
}

/// Long enough for every step of the suite on a loaded machine; only a bug reaches it.
inline Deadline patient() { return Deadline::after(std::chrono::seconds(60)); }
/// For waits that must end in a deadline error.
inline Deadline brief() { return Deadline::after(std::chrono::milliseconds(20)); }

/// The bytes of a message, different for each message.
inline Bytes pattern(Rank from, Rank to, MessageId id, std::size_t bytes) {
  Bytes out(bytes);
  const auto ranks =
      static_cast<std::uint64_t>(from.value()) << 32 | static_cast<std::uint64_t>(to.value());
  const std::uint64_t seed = mix64(ranks) ^ id.value();
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = mix64(seed + i);
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return out;
}

/// Memory for one received message, surrounded by bytes that must not change.
class Room {
 public:
  Room(Rank from, MessageId id, std::size_t bytes,
       std::shared_ptr<MessageMemory> memory = host_memories().recvs)
      : from_(from),
        id_(id),
        bytes_(bytes),
        memory_(std::move(memory), Bytes(bytes + 2 * kMargin, kUntouched)) {}

  Recv recv() { return {from_, id_, memory_.bytes().subspan(kMargin, bytes_)}; }

  /// True if it has exactly pattern(from, to, id) and no byte around it has changed.
  bool holds_pattern(Rank to) const {
    Bytes want(kMargin, kUntouched);
    const Bytes message = pattern(from_, to, id_, bytes_);
    want.insert(want.end(), message.begin(), message.end());
    want.insert(want.end(), kMargin, kUntouched);
    return memory_.read() == want;
  }

 private:
  static constexpr std::size_t kMargin = 16;
  static constexpr std::byte kUntouched{0xa5};
  Rank from_;
  MessageId id_;
  std::size_t bytes_;
  Block memory_;
};

/// The messages of one rank in one step, with their memory.
struct Traffic {
  std::vector<Block> payloads;
  std::vector<Room> rooms;
  std::vector<Send> sends;

  explicit Traffic(const RankEnds& ends) : me(ends.rank()), memory(ends.memory) {}
  void send(Rank to, MessageId id, std::size_t bytes) {
    payloads.emplace_back(memory.sends, pattern(me, to, id, bytes));
    sends.push_back({to, id, payloads.back().bytes()});
  }
  void recv(Rank from, MessageId id, std::size_t bytes) {
    rooms.emplace_back(from, id, bytes, memory.recvs);
  }
  std::vector<Recv> recvs() {
    std::vector<Recv> out;
    for (Room& room : rooms) out.push_back(room.recv());
    return out;
  }
  std::size_t wrong() const {
    std::size_t n = 0;
    for (const Room& room : rooms) n += !room.holds_pattern(me);
    return n;
  }
  Rank me;
  MessageMemories memory;
};

/// Exchanges and waits; an error of either call is the result.
inline Result<> step(Transport& transport, std::span<const Send> sends, std::span<const Recv> recvs,
                     Deadline deadline = patient()) {
  auto event = RESHARD_TRY(transport.exchange(sends, recvs));
  return event->wait(deadline);
}

/// "" for success, else "code: message": prints well in an assertion.
template <class T>
std::string outcome(const Result<T>& result) {
  if (result) return "";
  return std::string(name(result.error().code)) + ": " + result.error().message;
}

/// Expects an error of this code whose message has all these parts.
template <class T>
void expect_error(const Result<T>& result, Code code, const std::vector<std::string>& parts = {}) {
  ASSERT_FALSE(result) << "expected " << name(code) << ", got success";
  EXPECT_EQ(name(result.error().code), name(code)) << result.error().message;
  for (const std::string& part : parts)
    EXPECT_NE(result.error().message.find(part), std::string::npos)
        << "\"" << part << "\" is not in \"" << result.error().message << "\"";
}

/// Tests of one backend with a given group size.
class TransportMessages : public testing::TestWithParam<std::tuple<TransportUnderTest, int>> {
 protected:
  void run(const RankBody& body) {
    const auto& [transport, ranks] = GetParam();
    EXPECT_EQ(outcome(transport.run_with_memory(ranks, body)), "");
  }
};

/// Much traffic, for few group sizes: these tests take longer than all others of messages.
class TransportLoad : public TransportMessages {};

/// Tests of one backend that choose their own group size.
class TransportFailures : public testing::TestWithParam<TransportUnderTest> {
 protected:
  void run(int ranks, const RankBody& body) {
    EXPECT_EQ(outcome(GetParam().run_with_memory(ranks, body)), "");
  }
};
class TransportControl : public TransportFailures {};
class TransportSlow : public TransportFailures {};

inline std::string case_name(const testing::TestParamInfo<TransportMessages::ParamType>& info) {
  return std::to_string(std::get<1>(info.param)) + "_ranks";
}

}  // namespace reshard
