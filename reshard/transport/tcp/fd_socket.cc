// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/tcp/fd_socket.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "reshard/transport/tcp/socket.h"

namespace reshard::tcp {
namespace {

int option_of(int socket, int option) {
  int value = -1;
  socklen_t bytes = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, option, &value, &bytes) == 0 ? value : -1;
}

/// A message of one byte and one file descriptor.
struct PassedFd {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};

  PassedFd() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room.data();
    message.msg_controllen = room.size();
  }
  PassedFd(const PassedFd&) = delete;
  PassedFd& operator=(const PassedFd&) = delete;
};

Accepted accept_passed(int socket) {
  PassedFd passed_fd;
  const ssize_t n = ::recvmsg(socket, &passed_fd.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n <= 0) return {FileDescriptor(), n == 0};
  const cmsghdr* head = CMSG_FIRSTHDR(&passed_fd.message);
  errno = EAGAIN;
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) return {};
  int passed = -1;
  std::memcpy(&passed, CMSG_DATA(head), sizeof passed);
  return {FileDescriptor(passed), false};
}

}  // namespace

bool is_rendezvous_socket(int fd) {
  return option_of(fd, SO_DOMAIN) == AF_UNIX && option_of(fd, SO_TYPE) == SOCK_SEQPACKET;
}

Result<FileDescriptor> connect_through(int socket) {
  auto [mine, theirs] = RESHARD_TRY(socket_pair());
  PassedFd passed_fd;
  cmsghdr* head = CMSG_FIRSTHDR(&passed_fd.message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  const int passed = theirs.get();
  std::memcpy(CMSG_DATA(head), &passed, sizeof passed);
  if (::sendmsg(socket, &passed_fd.message, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
    return fail(Code::io, std::strerror(errno));
  return std::move(mine);
}

Accepted accept_connection(int listener) {
  if (option_of(listener, SO_ACCEPTCONN) != 1) return accept_passed(listener);
  return {FileDescriptor(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)),
          false};
}

}  // namespace reshard::tcp
