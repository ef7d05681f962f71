// SPDX-License-Identifier: Apache-2.0
// Protects: a connection without the secret neither joins nor disturbs the group.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/transport/rendezvous.h"
#include "reshard/transport/tcp/coordinator.h"
#include "reshard/transport/tcp/socket.h"
#include "reshard/transport/testing/conformance_ranks_testutil.h"

namespace reshard {
namespace {

using namespace tcp;

constexpr std::chrono::milliseconds kSecond{1000};

/// A group of `size` that is waiting for its ranks at a port of this host.
class Gathering {
 public:
  explicit Gathering(int size) : size_(size) {
    const auto listener = listen_at("127.0.0.1", 0);
    port_ = listener ? listener->port : 0;
  }
  RendezvousOptions as(int rank) const {
    RendezvousOptions join;
    join.url = "tcp://127.0.0.1:" + std::to_string(port_);
    join.rank = Rank{rank};
    join.size = size_;
    join.secret = secret_;
    return join;
  }
  void start() {
    zero_ = std::async(std::launch::async, [as = as(0)] { return join(as); });
    while (!connect_to("127.0.0.1", port_, kSecond, patient())) std::this_thread::yield();
  }
  FileDescriptor connect() const {
    auto socket = connect_to("127.0.0.1", port_, 10 * kSecond, patient());
    EXPECT_TRUE(socket) << outcome(socket);
    return socket ? std::move(*socket) : FileDescriptor();
  }
  /// Completes the group, in spite of all.
  void expect_success() {
    std::vector<std::future<Result<>>> others;
    const auto live = [](const RendezvousOptions& as) -> Result<> {
      auto me = RESHARD_TRY(join(as));
      return me->barrier(patient());
    };
    for (int rank = 1; rank < size_; ++rank)
      others.push_back(std::async(std::launch::async, live, as(rank)));
    auto zero = zero_.get();
    ASSERT_TRUE(zero) << outcome(zero);
    EXPECT_EQ(outcome((*zero)->barrier(patient())), "");
    for (auto& other : others) EXPECT_EQ(outcome(other.get()), "");
  }
  const GroupKey key() const { return group_key("reshard", secret_); }

 private:
  const int size_;
  int port_;
  const Secret secret_ = Secret::random();
  std::future<Result<std::unique_ptr<ControlPlane>>> zero_;
};

/// Reads until the peer closes, and returns the bytes.
std::vector<std::byte> hear_until_closed(const FileDescriptor& socket) {
  std::vector<std::byte> all;
  for (std::array<std::byte, 1> one; receive_all(socket.get(), one, patient());)
    all.push_back(one[0]);
  return all;
}

std::vector<std::byte> junk(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(mix64(seed + i) & 0xff);
  return out;
}

TEST(RendezvousHostile, junk_is_cut_off_without_an_answer) {
  Gathering group(3);
  group.start();
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const FileDescriptor socket = group.connect();
    (void)send_all(socket.get(), junk(1 + mix64(seed) % 300, seed), patient());
    EXPECT_TRUE(hear_until_closed(socket).empty());
  }
  group.expect_success();
}

TEST(RendezvousHostile, junk_behind_a_good_beginning_is_cut_off) {
  Gathering group(2);
  group.start();
  for (std::size_t good = 8; good < kHelloBytes; good += 16) {
    const FileDescriptor socket = group.connect();
    auto hello = junk(kHelloBytes, good);
    const ClientHandshake handshake(group.key(), Instance{});
    std::copy_n(handshake.hello().begin(), good, hello.begin());
    EXPECT_TRUE(send_all(socket.get(), hello, patient()));
    const auto heard = hear_until_closed(socket);
    ASSERT_EQ(heard.size(), 1U);
    EXPECT_NE(heard[0], static_cast<std::byte>(Verdict::welcome));
  }
  group.expect_success();
}

/// The bytes that a rank sends to join, given the answer to its hello.
std::vector<std::byte> rest_of_joining(const SessionKeys& keys) {
  auto ends = socket_pair();
  EXPECT_TRUE(ends);
  SecureWriter writer(keys.from_rank);
  const Key digest = digest_of("");
  writer.queue(Frame{Kind::join, 0, 1, 2, "\"\"", {digest.begin(), digest.end()}});
  EXPECT_EQ(writer.flush(ends->first.get()), Flow::open);
  std::vector<std::byte> out(4096);
  const ssize_t n = ::recv(ends->second.get(), out.data(), out.size(), 0);
  out.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return out;
}

TEST(RendezvousHostile, a_recorded_conversation_joins_nobody) {
  Gathering group(2);
  group.start();
  const ClientHandshake handshake(group.key(), Instance{});
  std::array<std::byte, 1 + kAnswerBytes> answer;
  std::vector<std::byte> recorded;
  {
    const FileDescriptor socket = group.connect();
    ASSERT_TRUE(send_all(socket.get(), handshake.hello(), patient()));
    ASSERT_TRUE(receive_all(socket.get(), answer, patient()));
    const auto keys = handshake.finish(std::span(answer).last<kAnswerBytes>());
    ASSERT_TRUE(keys);
    recorded = rest_of_joining(*keys);
  }
  const FileDescriptor socket = group.connect();
  ASSERT_TRUE(send_all(socket.get(), handshake.hello(), patient()));
  ASSERT_TRUE(receive_all(socket.get(), answer, patient()));
  EXPECT_EQ(answer[0], static_cast<std::byte>(Verdict::welcome));
  ASSERT_TRUE(send_all(socket.get(), recorded, patient()));
  // Its stream header, which carries no information, and no frame.
  EXPECT_LE(hear_until_closed(socket).size(), 24U);
  group.expect_success();
}

TEST(RendezvousHostile, silent_connections_do_not_keep_others_out) {
  Gathering group(4);
  group.start();
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 600; ++i) silent.push_back(group.connect());
  group.expect_success();
}

TEST(RendezvousHostile, a_flood_is_cut_off) {
  Gathering group(2);
  group.start();
  for (const bool welcome : {false, true}) {
    const FileDescriptor socket = group.connect();
    const ClientHandshake handshake(group.key(), Instance{});
    if (welcome) {
      ASSERT_TRUE(send_all(socket.get(), handshake.hello(), patient()));
    }
    const auto much = junk(1 << 20, 1);
    bool refused = false;
    for (int i = 0; i < 1000 && !refused; ++i) refused = !send_all(socket.get(), much, patient());
    EXPECT_TRUE(refused);
  }
  group.expect_success();
}

TEST(RendezvousHostile, who_is_silent_for_too_long_is_cut_off_and_who_is_slow_is_not) {
  auto listener = listen_at("127.0.0.1", 0);
  auto ends = socket_pair();
  ASSERT_TRUE(listener && ends);
  const int port = listener->port;
  Coordinator::Options options;
  options.size = 2;
  options.key = group_key("job", Secret::random());
  options.handshake_timeout = std::chrono::milliseconds(200);
  auto wake_fd = WakeFd::make();
  ASSERT_TRUE(wake_fd);
  const Coordinator coordinator(options, std::move(listener->socket), std::move(ends->second),
                                std::move(*wake_fd));
  {
    auto silent = connect_to("127.0.0.1", port, kSecond, patient());
    ASSERT_TRUE(silent);
    EXPECT_TRUE(hear_until_closed(*silent).empty());
    // Also a connection that has sent part of a hello, or a whole one and nothing after it.
    for (const std::size_t said : {std::size_t{40}, kHelloBytes}) {
      auto half = connect_to("127.0.0.1", port, kSecond, patient());
      ASSERT_TRUE(half);
      const ClientHandshake handshake(options.key, Instance{});
      ASSERT_TRUE(send_all(half->get(), handshake.hello().first(said), patient()));
      EXPECT_EQ(hear_until_closed(*half).empty(), said < kHelloBytes);
    }
  }
  auto slow = connect_to("127.0.0.1", port, kSecond, patient());
  ASSERT_TRUE(slow);
  const ClientHandshake handshake(options.key, Instance{});
  for (const std::byte& one : handshake.hello())
    ASSERT_TRUE(send_all(slow->get(), {&one, 1}, patient()));
  std::array<std::byte, 1 + kAnswerBytes> answer;
  ASSERT_TRUE(receive_all(slow->get(), answer, patient()));
  EXPECT_TRUE(handshake.finish(std::span(answer).last<kAnswerBytes>()));
}

}  // namespace
}  // namespace reshard
