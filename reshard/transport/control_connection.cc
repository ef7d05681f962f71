// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "reshard/transport/control_server.h"
#include "reshard/transport/tcp/authenticate.h"
#include "reshard/transport/tcp/rendezvous_address.h"
#include "reshard/transport/tcp/socket.h"
#include "reshard/transport/tcp/stream.h"

namespace reshard {
namespace {

using namespace std::chrono_literals;
using namespace tcp;

constexpr auto kConnectAgain = 20ms;
constexpr std::chrono::milliseconds kConnectOneLimit = 2s;
constexpr auto kAuthenticationLimit = 5s;

/// The address of this end of a socket.
std::string host_of(int socket) {
  sockaddr_storage at{};
  socklen_t bytes = sizeof at;
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &bytes) != 0) return "127.0.0.1";
  if (at.ss_family == AF_INET6) {
    const in6_addr& address = reinterpret_cast<sockaddr_in6*>(&at)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address))
      ::inet_ntop(AF_INET, &address.s6_addr[12], text.data(), text.size());
    else
      ::inet_ntop(AF_INET6, &address, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&at)->sin_addr, text.data(), text.size());
  }
  return text.data();
}

class SecureConnection final : public ControlConnection {
 public:
  SecureConnection(FileDescriptor socket, const SessionKeys& keys, Secret secret, WakeFd wake_fd)
      : socket_(std::move(socket)),
        host_(host_of(socket_.get())),
        secret_(std::move(secret)),
        wake_fd_(std::move(wake_fd)),
        writer_(keys.from_rank),
        reader_(keys.from_coordinator) {}

  Result<> send(std::span<const std::byte> message, Deadline deadline) override {
    if (message.size() > kMaxControlMessageBytes)
      return fail(Code::invalid_argument, fmt::format("a message of {} bytes: at most {}",
                                                      message.size(), kMaxControlMessageBytes));
    Frame frame;
    frame.kind = Kind::message;
    frame.bytes.assign(message.begin(), message.end());
    writer_.queue(frame);
    for (;;) {
      if (writer_.flush(socket_.get()) == Flow::ended) return ended();
      if (writer_.idle()) return {};
      RESHARD_TRY(wait(POLLOUT, deadline));
      if (deadline.expired()) return fail(Code::deadline, "the server takes no messages");
    }
  }

  Result<std::optional<std::vector<std::byte>>> receive(Deadline deadline) override {
    while (received_.empty()) {
      if (is_over_) return ended();
      RESHARD_TRY(wait(POLLIN, deadline));
      const Flow flow = reader_.read(socket_.get(), kMaxControlMessageBytes + kMaxTextBytes,
                                     [this](Frame& frame) {
                                       if (frame.kind != Kind::message) return false;
                                       received_.push_back(frame.bytes);
                                       return true;
                                     });
      is_over_ = flow == Flow::ended;
      if (received_.empty() && !is_over_ && deadline.expired())
        return std::optional<std::vector<std::byte>>();
    }
    std::optional<std::vector<std::byte>> first(std::move(received_.front()));
    received_.pop_front();
    return first;
  }

  void cancel() override {
    cancelled_ = true;
    wake_fd_.notify();
  }
  const std::string& local_host() const override { return host_; }
  const Secret& secret() const override { return secret_; }

 private:
  static tl::unexpected<Error> ended() {
    return fail(Code::aborted, "the connection to the server has ended");
  }

  /// Until the socket is ready, or the deadline.
  Result<> wait(short events, Deadline deadline) {
    pollfd polled[2]{{socket_.get(), events, 0}, {wake_fd_.fd(), POLLIN, 0}};
    if (!cancelled_)
      (void)::poll(polled, 2, milliseconds_until(deadline.time(), Deadline::Clock::now()));
    if (cancelled_) return fail(Code::aborted, "interrupted");
    return {};
  }

  const FileDescriptor socket_;
  const std::string host_;
  const Secret secret_;
  const WakeFd wake_fd_;
  SecureWriter writer_;
  SecureReader reader_;
  std::deque<std::vector<std::byte>> received_;
  bool is_over_ = false;
  std::atomic<bool> cancelled_{false};
};

/// The outcome of an attempt: a connection, a final error, or why to try again.
struct ConnectionAttempt {
  std::unique_ptr<ControlConnection> connection = nullptr;
  std::optional<Error> error = std::nullopt;
  std::string again = {};
};

ConnectionAttempt try_address(const std::string& host, int port, const Instance& instance,
                              const ControlAddress& address, const Secret& secret,
                              Deadline deadline) {
  auto socket = connect_to(host, port, kConnectOneLimit, deadline);
  if (!socket) return {.again = socket.error().message};
  const Deadline limit = std::min(deadline, Deadline::after(kAuthenticationLimit));
  const Authentication made =
      authenticate(socket->get(), group_key(address.job, secret), instance, limit);
  if (made.verdict == Verdict::wrong_secret)
    return {.error = Error{Code::aborted, "connect: the secret is not that of the server"}};
  if (!made.keys) return {.again = made.reason};
  auto wake_fd = WakeFd::make();
  if (!wake_fd) return {.error = std::move(wake_fd).error()};
  return {.connection = std::make_unique<SecureConnection>(std::move(*socket), *made.keys, secret,
                                                           std::move(*wake_fd))};
}

ConnectionAttempt try_connect(const RendezvousAddress& at, const ControlAddress& address,
                              Deadline deadline) {
  if (at.folder.empty())
    return try_address(at.host, at.port, Instance{}, address, address.secret, deadline);
  const auto file = read_rendezvous_file(rendezvous_file_path(at.folder, address.job));
  if (!file) return {.again = file.error().message};
  ConnectionAttempt last{.again = "the file has no addresses"};
  for (const std::string& host : file->addresses) {
    last = try_address(host, file->port, file->instance, address,
                       address.secret.empty() ? file->secret : address.secret, deadline);
    if (last.connection || last.error) break;
  }
  return last;
}

}  // namespace

Result<std::unique_ptr<ControlConnection>> ControlConnection::connect(
    const ControlAddress& address, Deadline deadline,
    const std::function<std::string()>& gives_up) {
  RESHARD_TRY(start_crypto());
  RESHARD_TRY(check_job(address.job));
  const RendezvousAddress at = RESHARD_TRY(parse_url(address.url));
  if (at.fd >= 0) return fail(Code::invalid_argument, "connect: the URL is tcp:// or file://");
  for (;;) {
    if (gives_up)
      if (std::string reason = gives_up(); !reason.empty())
        return fail(Code::aborted, std::move(reason));
    ConnectionAttempt made = try_connect(at, address, deadline);
    if (made.connection) return std::move(made.connection);
    if (made.error) return tl::unexpected(*std::move(made.error));
    if (deadline.expired())
      return fail(Code::deadline,
                  fmt::format("connect: nobody serves at {} ({})", address.url, made.again));
    std::this_thread::sleep_for(kConnectAgain);
  }
}

}  // namespace reshard
