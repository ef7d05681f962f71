// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

namespace reshard::tcp {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

tl::unexpected<Error> system_error(std::string_view what, int error) {
  return fail(Code::io, fmt::format("{}: {}", what, std::strerror(error)));
}

Result<Addresses> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return fail(error == EAI_AGAIN || error == EAI_SYSTEM ? Code::io : Code::invalid_argument,
                fmt::format("host {} has no address: {}", host, ::gai_strerror(error)));
  }
  return Addresses(found, &::freeaddrinfo);
}

FileDescriptor stream_socket(int family) {
  return FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

void set(int socket, int level, int option, int value) {
  (void)::setsockopt(socket, level, option, &value, sizeof value);
}

/// 0, or the errno of the call that failed.
int bind_and_listen(int socket, const sockaddr* address, socklen_t bytes) {
  set(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(socket, address, bytes) != 0 || ::listen(socket, SOMAXCONN) != 0) return errno;
  return 0;
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Result<Listener> listen_everywhere(int port, bool* in_use) {
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_port = any6.sin6_port;
  int error = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    FileDescriptor socket = stream_socket(family);
    if (!socket) {
      error = errno;
      continue;
    }
    if (family == AF_INET6) set(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    error = family == AF_INET6
                ? bind_and_listen(socket.get(), reinterpret_cast<sockaddr*>(&any6), sizeof any6)
                : bind_and_listen(socket.get(), reinterpret_cast<sockaddr*>(&any4), sizeof any4);
    if (error == 0) {
      const int bound = port_of(socket.get());
      return Listener{std::move(socket), bound};
    }
    if (error == EADDRINUSE) break;
  }
  if (in_use != nullptr) *in_use = error == EADDRINUSE;
  return system_error(fmt::format("cannot listen at port {}", port), error);
}

/// poll() for one socket. Errors: `io` at the deadline.
Result<> wait_for(int socket, short events, Deadline deadline) {
  for (;;) {
    pollfd polled{socket, events, 0};
    const auto now = Deadline::Clock::now();
    const int n = ::poll(&polled, 1, milliseconds_until(deadline.time(), now));
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return system_error("poll", errno);
    if (deadline.expired()) return fail(Code::io, "no answer before the deadline");
  }
}

Result<FileDescriptor> connect_one(const addrinfo& to, Deadline deadline) {
  FileDescriptor socket = stream_socket(to.ai_family);
  if (!socket) return system_error("socket", errno);
  if (::connect(socket.get(), to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return system_error("connect", errno);
    RESHARD_TRY(wait_for(socket.get(), POLLOUT, deadline));
    int error = 0;
    socklen_t bytes = sizeof error;
    (void)::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return system_error("connect", error);
  }
  tune(socket.get());
  return socket;
}

}  // namespace

Result<WakeFd> WakeFd::make() {
  FileDescriptor fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return system_error("eventfd", errno);
  return WakeFd(std::move(fd));
}

void WakeFd::notify() const { (void)::eventfd_write(fd_.get(), 1); }

void WakeFd::clear() const {
  eventfd_t count = 0;
  (void)::eventfd_read(fd_.get(), &count);
}

std::thread thread_without_signals(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

int milliseconds_until(std::chrono::steady_clock::time_point time,
                       std::chrono::steady_clock::time_point now) {
  if (time == std::chrono::steady_clock::time_point::max()) return -1;
  if (time <= now) return 0;
  const auto span = std::chrono::ceil<std::chrono::milliseconds>(time - now);
  return static_cast<int>(std::min<std::int64_t>(span.count(), 3'600'000));
}

Result<Listener> listen_at(const std::string& host, int port, bool* in_use) {
  if (in_use != nullptr) *in_use = false;
  if (host.empty()) return listen_everywhere(port, in_use);
  const Addresses addresses = RESHARD_TRY(resolve(host, port));
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    FileDescriptor socket = stream_socket(a->ai_family);
    if (!socket) continue;
    const int error = bind_and_listen(socket.get(), a->ai_addr, a->ai_addrlen);
    if (error == 0) {
      const int bound = port_of(socket.get());
      return Listener{std::move(socket), bound};
    }
    if (error != EADDRNOTAVAIL) {
      if (in_use != nullptr) *in_use = error == EADDRINUSE;
      return system_error(fmt::format("cannot listen at {}:{}", host, port), error);
    }
  }
  // The host name leads here indirectly, for example through address translation.
  return listen_everywhere(port, in_use);
}

Result<FileDescriptor> connect_to(const std::string& host, int port,
                                  std::chrono::milliseconds limit, Deadline deadline) {
  const Addresses addresses = RESHARD_TRY(resolve(host, port));
  Result<FileDescriptor> last = fail(Code::io, "no address");
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    last = connect_one(*a, std::min(deadline, Deadline::after(limit)));
    if (last) break;
  }
  return last;
}

Result<std::pair<FileDescriptor, FileDescriptor>> socket_pair() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0)
    return system_error("socketpair", errno);
  return std::pair(FileDescriptor(fds[0]), FileDescriptor(fds[1]));
}

void tune(int socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 20'000);
}

Result<> send_all(int socket, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      RESHARD_TRY(wait_for(socket, POLLOUT, deadline));
    } else if (errno != EINTR) {
      return system_error("send", errno);
    }
  }
  return {};
}

Result<> receive_all(int socket, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    } else if (n == 0) {
      return fail(Code::io, "the connection was closed");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      RESHARD_TRY(wait_for(socket, POLLIN, deadline));
    } else if (errno != EINTR) {
      return system_error("receive", errno);
    }
  }
  return {};
}

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {"127.0.0.1"};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<std::string> loopback, others;
  for (const ifaddrs* a = list; a != nullptr; a = a->ifa_next) {
    if (a->ifa_addr == nullptr || (a->ifa_flags & IFF_UP) == 0) continue;
    const int family = a->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(a->ifa_addr, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) !=
        0)
      continue;
    const std::string address(text.data());
    // A link-local address is of no use without an interface of the reader.
    if (address.find('%') != std::string::npos) continue;
    ((a->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : others).push_back(address);
  }
  loopback.insert(loopback.end(), others.begin(), others.end());
  return loopback;
}

void raise_file_limit(std::size_t n) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = static_cast<rlim_t>(n) + 1024;
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace reshard::tcp
