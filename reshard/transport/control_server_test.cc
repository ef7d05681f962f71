// SPDX-License-Identifier: Apache-2.0
// Law: a server and processes that come and go exchange messages in order, and nobody else does.
#include "reshard/transport/control_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "reshard/transport/tcp/socket.h"

namespace reshard {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

Deadline soon() { return Deadline::after(20s); }

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A server that answers each message with "re: " and the message, closes on "close", and keeps
/// what it hears.
class Echo {
 public:
  explicit Echo(ControlAddress address) : address_(std::move(address)) {
    const std::lock_guard lock(mutex_);
    server_ = *ControlServer::serve(
        address_, {.received = [this](ConnectionId id, auto message) { received(id, message); },
                   .lost = [this](ConnectionId id) { note("lost " + std::to_string(id)); },
                   .next_wake = [this] { return next_wake(); },
                   .wake = [this] { note_wake(); }});
    address_.url = server_->url();
  }

  const ControlAddress& address() const { return address_; }
  std::unique_ptr<ControlConnection> connect() const {
    return *ControlConnection::connect(address_, soon());
  }
  void wake_at(ControlServer::Clock::time_point at) {
    const std::lock_guard lock(mutex_);
    wake_ = at;
  }
  /// Waits until it has heard so much.
  std::vector<std::string> heard(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, soon().time(), [&] { return heard_.size() >= count; });
    return heard_;
  }

 private:
  void received(ConnectionId id, std::span<const std::byte> message) {
    const std::string text = text_of(message);
    note(std::to_string(id) + " " + text.substr(0, 20));
    const std::lock_guard lock(mutex_);
    if (text == "close") return server_->close(id);
    server_->send(id, bytes_of("re: " + text));
  }
  void note(std::string text) {
    const std::lock_guard lock(mutex_);
    heard_.push_back(std::move(text));
    changed_.notify_all();
  }
  std::optional<ControlServer::Clock::time_point> next_wake() {
    const std::lock_guard lock(mutex_);
    return wake_;
  }
  void note_wake() {
    wake_at(ControlServer::Clock::time_point::max());
    note("wake");
  }

  ControlAddress address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> heard_;
  std::optional<ControlServer::Clock::time_point> wake_;
  std::unique_ptr<ControlServer> server_;
};

ControlAddress anywhere() {
  return {"tcp://127.0.0.1:0", "test", *Secret::from_text("a secret of the test")};
}

std::string receive(ControlConnection& connection) {
  const auto message = connection.receive(soon());
  if (!message) return "error: " + message.error().message;
  return *message ? text_of(**message) : "nothing";
}

TEST(ControlServer, messages_arrive_in_order_and_long_ones_whole) {
  Echo echo(anywhere());
  const auto connection = echo.connect();
  const std::string large(3'000'000, 'x');
  for (const std::string& text : {std::string("one"), large, std::string()})
    ASSERT_TRUE(connection->send(bytes_of(text), soon()).has_value());
  EXPECT_EQ(receive(*connection), "re: one");
  EXPECT_EQ(receive(*connection), "re: " + large);
  EXPECT_EQ(receive(*connection), "re: ");
}

TEST(ControlServer, the_end_of_a_process_is_heard_and_that_of_the_server_too) {
  auto echo = std::make_unique<Echo>(anywhere());
  auto one = echo->connect(), other = echo->connect();
  ASSERT_TRUE(one->send(bytes_of("hello"), soon()).has_value());
  EXPECT_EQ(receive(*one), "re: hello");
  one.reset();
  EXPECT_THAT(echo->heard(2), ElementsAre("1 hello", "lost 1"));
  echo.reset();
  EXPECT_THAT(receive(*other), HasSubstr("has ended"));
}

TEST(ControlServer, a_connection_that_the_server_closes_is_not_lost) {
  Echo echo(anywhere());
  const auto one = echo.connect(), other = echo.connect();
  ASSERT_TRUE(one->send(bytes_of("close"), soon()).has_value());
  EXPECT_THAT(receive(*one), HasSubstr("has ended"));
  ASSERT_TRUE(other->send(bytes_of("hello"), soon()).has_value());
  EXPECT_EQ(receive(*other), "re: hello");
  EXPECT_THAT(echo.heard(2), ElementsAre("1 close", "2 hello"));
}

TEST(ControlServer, the_server_is_woken_at_its_time) {
  Echo echo(anywhere());
  echo.wake_at(ControlServer::Clock::now());
  const auto connection = echo.connect();
  ASSERT_TRUE(connection->send(bytes_of("hello"), soon()).has_value());
  EXPECT_THAT(echo.heard(2), testing::Contains("wake"));
}

TEST(ControlServer, nothing_comes_by_the_deadline) {
  Echo echo(anywhere());
  EXPECT_EQ(echo.connect()->receive(Deadline::after(0s)).value(), std::nullopt);
}

TEST(ControlServer, a_wait_that_is_cancelled_ends) {
  Echo echo(anywhere());
  const auto connection = echo.connect();
  connection->cancel();
  EXPECT_EQ(receive(*connection), "error: interrupted");
}

TEST(ControlServer, a_folder_is_an_address_without_a_secret) {
  std::string folder = std::filesystem::temp_directory_path() / "reshard-control-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    Echo echo({"file://" + folder, "test", {}});
    const auto connection = echo.connect();
    ASSERT_TRUE(connection->send(bytes_of("hello"), soon()).has_value());
    EXPECT_EQ(receive(*connection), "re: hello");
    EXPECT_FALSE(connection->secret().empty());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
}

TEST(ControlServer, who_lacks_the_secret_or_names_another_job_does_not_get_in) {
  Echo echo(anywhere());
  ControlAddress address = echo.address();
  address.secret = *Secret::from_text("another secret of the test");
  const auto refused = ControlConnection::connect(address, soon());
  EXPECT_EQ(refused.error().code, Code::aborted);
  EXPECT_THAT(refused.error().message, HasSubstr("the secret is not that of the server"));
  address = echo.address();
  address.job = "other";
  EXPECT_EQ(ControlConnection::connect(address, Deadline::after(0s)).error().code, Code::deadline);
}

TEST(ControlServer, bytes_of_others_end_their_connections_and_no_other) {
  Echo echo(anywhere());
  const int port = std::stoi(echo.address().url.substr(echo.address().url.rfind(':') + 1));
  const auto member = echo.connect();
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(500, '\0')}) {
    const auto socket = tcp::connect_to("127.0.0.1", port, 2s, soon());
    ASSERT_TRUE(socket.has_value());
    (void)tcp::send_all(socket->get(), bytes_of(text), soon());
    std::array<std::byte, 1> answer{};
    EXPECT_FALSE(tcp::receive_all(socket->get(), answer, soon()).has_value());
  }
  ASSERT_TRUE(member->send(bytes_of("hello"), soon()).has_value());
  EXPECT_EQ(receive(*member), "re: hello");
}

TEST(ControlServer, addresses_that_cannot_be_are_refused) {
  const ControlServer::Callbacks callbacks{.received = [](ConnectionId, auto) {},
                                           .lost = [](ConnectionId) {},
                                           .next_wake = [] { return std::nullopt; },
                                           .wake = [] {}};
  const auto why = [&](const ControlAddress& address) {
    return ControlServer::serve(address, callbacks).error().message;
  };
  EXPECT_THAT(why({"tcp://127.0.0.1:0", "test", {}}), HasSubstr("needs a secret"));
  EXPECT_THAT(why({"udp://127.0.0.1:0", "test", {}}), HasSubstr("unknown scheme"));
  EXPECT_THAT(why({"tcp://127.0.0.1:0", "a job", {}}), HasSubstr("job"));
  EXPECT_THAT(ControlServer::serve(anywhere(), {}).error().message, HasSubstr("callback"));
}

}  // namespace
}  // namespace reshard
