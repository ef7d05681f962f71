// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/shm/fd_passing.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

namespace reshard::shm {
namespace {

constexpr int kFiles = 2;

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;
};

Address address(std::uint64_t nonce) {
  Address a;
  a.name.sun_family = AF_UNIX;
  const std::string text = fmt::format("reshard-{:016x}", nonce);
  std::memcpy(a.name.sun_path + 1, text.data(), text.size());  // A leading 0: an abstract address.
  a.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return a;
}

FileDescriptor unix_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

Result<> readable(int fd, Deadline deadline, std::string_view what) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.time() -
                                                                            Deadline::Clock::now());
    const auto most = std::chrono::milliseconds(1000);
    const auto wait = deadline.is_never() ? most : std::clamp(left, most * 0, most);
    pollfd p{fd, POLLIN, 0};
    const int n = ::poll(&p, 1, static_cast<int>(wait.count()));
    if (n > 0) return {};
    if (n < 0 && errno != EINTR)
      return fail(Code::io, fmt::format("{}: {}", what, std::strerror(errno)));
    if (deadline.expired()) return fail(Code::deadline, fmt::format("{}: deadline passed", what));
  }
}

union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(kFiles * sizeof(int))];
};

Result<> send_files(int socket, int segment, int arena) {
  Control control{};
  char mark = 'r';
  iovec data{&mark, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(kFiles * sizeof(int));
  const int files[kFiles] = {segment, arena};
  std::memcpy(CMSG_DATA(header), files, sizeof files);
  if (sendmsg(socket, &message, MSG_NOSIGNAL) == 1) return {};
  return fail(Code::io, fmt::format("passing files to a peer: {}", std::strerror(errno)));
}

bool same_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         (peer.uid == geteuid() || peer.uid == 0);
}

}  // namespace

Result<> FdPassing::listen(std::uint64_t nonce) {
  listener_ = unix_socket();
  const Address a = address(nonce);
  if (!listener_ ||
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&a.name), a.bytes) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0)
    return fail(Code::io, fmt::format("a unix socket: {}", std::strerror(errno)));
  return {};
}

Result<> FdPassing::ask(Rank peer, std::uint64_t nonce, bool same_network) {
  FileDescriptor socket = unix_socket();
  const Address a = address(nonce);
  if (!socket ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&a.name), a.bytes) != 0) {
    // It listened before it gave the nonce, and does until it has all files or leaves.
    if (socket && same_network && errno == ECONNREFUSED)
      return fail(Code::aborted, fmt::format("rank {} has left the group", peer.value()));
    return fail(
        Code::unsupported,
        fmt::format("the memory of rank {} cannot be accessed: neither through /proc nor by a "
                    "unix socket ({}); both processes need the same user and network "
                    "namespace",
                    peer.value(), std::strerror(errno)));
  }
  asked_.push_back({peer, std::move(socket)});
  return {};
}

Result<> FdPassing::serve(int peers, int segment, int arena, Deadline deadline) {
  while (peers > 0) {
    RESHARD_TRY(readable(listener_.get(), deadline, "waiting for a peer that asked for files"));
    const FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket || !same_user(socket.get())) continue;
    RESHARD_TRY(send_files(socket.get(), segment, arena));
    --peers;
  }
  return {};
}

Result<PassedFiles> FdPassing::take(Rank peer, Deadline deadline) {
  const auto it = std::ranges::find(asked_, peer, &Asked::peer);
  const std::string what = fmt::format("files of rank {}", peer.value());
  if (it == asked_.end()) return fail(Code::unsupported, what + ": not asked for");
  RESHARD_TRY(readable(it->socket.get(), deadline, what));
  Control control{};
  char mark = 0;
  iovec data{&mark, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  const auto got = recvmsg(it->socket.get(), &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* header = got == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(kFiles * sizeof(int)))
    return fail(Code::unsupported, what + " did not arrive");
  int files[kFiles];
  std::memcpy(files, CMSG_DATA(header), sizeof files);
  return PassedFiles{FileDescriptor(files[0]), FileDescriptor(files[1])};
}

}  // namespace reshard::shm
