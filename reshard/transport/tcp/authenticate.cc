// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/authenticate.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "reshard/transport/tcp/socket.h"

namespace reshard::tcp {

namespace {

constexpr int kPollMilliseconds = 50;

/// Waits until bytes or the end of the connection are there. A listening socket takes connections
/// before anybody accepts them, so an answer may never come.
void wait_for_answer(int socket, Deadline limit, const std::function<std::string()>& gives_up) {
  pollfd polled{socket, POLLIN, 0};
  while (!limit.expired() && gives_up().empty())
    if (::poll(&polled, 1, kPollMilliseconds) > 0) return;
}

}  // namespace

Authentication authenticate(int socket, const GroupKey& key, const Instance& instance,
                            Deadline limit, const std::function<std::string()>& gives_up) {
  const ClientHandshake handshake(key, instance);
  std::array<std::byte, 1> verdict{};
  bool answered = send_all(socket, handshake.hello(), limit).has_value();
  if (answered && gives_up) {
    wait_for_answer(socket, limit, gives_up);
    if (std::string reason = gives_up(); !reason.empty())
      return {Verdict::other_group, std::nullopt, std::move(reason)};
  }
  answered = answered && receive_all(socket, verdict, limit);
  if (answered && verdict[0] == static_cast<std::byte>(Verdict::wrong_secret))
    return {Verdict::wrong_secret, std::nullopt, "the secret is not that of the other end"};
  if (!answered || verdict[0] != static_cast<std::byte>(Verdict::welcome))
    return {Verdict::other_group, std::nullopt, "this group is not forming there"};
  std::array<std::byte, kAnswerBytes> answer{};
  if (const auto received = receive_all(socket, answer, limit); !received)
    return {Verdict::welcome, std::nullopt, received.error().message};
  const auto keys = handshake.finish(answer);
  if (!keys) return {Verdict::welcome, std::nullopt, keys.error().message};
  return {Verdict::welcome, *keys, ""};
}

HelloReader::State HelloReader::read(int socket, const GroupKey& key, const Instance& instance) {
  std::array<std::byte, kHelloBytes> buffer;
  const ssize_t n = ::recv(socket, buffer.data(), kHelloBytes - hello_.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return State::more;
  if (n > 0) hello_.insert(hello_.end(), buffer.begin(), buffer.begin() + n);
  if (n <= 0 || !looks_like_hello(hello_)) return State::ended;
  if (hello_.size() < kHelloBytes) return State::more;
  reply_ = reply_to(std::span<const std::byte, kHelloBytes>(hello_), key, instance);
  if (reply_.verdict != Verdict::welcome) {
    const auto verdict = static_cast<std::byte>(reply_.verdict);
    (void)::send(socket, &verdict, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  return State::answered;
}

std::vector<std::byte> HelloReader::welcome() const {
  std::vector<std::byte> clear(1 + reply_.answer.size(), static_cast<std::byte>(reply_.verdict));
  std::ranges::copy(reply_.answer, clear.begin() + 1);
  return clear;
}

}  // namespace reshard::tcp
