// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/mpi_rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "reshard/transport/module.h"

namespace reshard::cli {
namespace {

/// The IPv4 address of an interface; for an empty name, of the first that is up and not loopback.
std::optional<in_addr> address_of(const std::string& interface) {
  in_addr wanted{};
  if (::inet_pton(AF_INET, interface.c_str(), &wanted) == 1) return wanted;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return std::nullopt;
  std::optional<in_addr> found;
  for (const ifaddrs* i = all; i != nullptr && !found; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
    const bool up = (i->ifa_flags & IFF_UP) != 0, loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
    if (!up || (interface.empty() ? loopback : interface != i->ifa_name)) continue;
    sockaddr_in address{};
    std::memcpy(&address, i->ifa_addr, sizeof address);
    found = address.sin_addr;
  }
  ::freeifaddrs(all);
  if (!found && interface.empty()) found = in_addr{htonl(INADDR_LOOPBACK)};
  return found;
}

/// A socket that listens at a free port of this address. Held until the group has joined, as
/// another process would take a port that is only chosen.
Result<FileDescriptor> listen_at(sockaddr_in& at) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t size = sizeof at;
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), size) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0)
    return fail(Code::io, fmt::format("cannot listen on this host: {}", std::strerror(errno)));
  return socket;
}

Result<MpiRendezvous> own_rendezvous(const std::string& interface) {
  const auto address = address_of(interface);
  if (!address)
    return fail(Code::invalid_argument,
                fmt::format("--interface {}: this host has no such interface that is up and has an "
                            "IPv4 address",
                            interface));
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &*address, text, sizeof text);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr = *address;
  FileDescriptor listener = RESHARD_TRY(listen_at(at));
  return MpiRendezvous{fmt::format("tcp://{}:{}", text, ntohs(at.sin_port)), Secret::random(),
                       std::move(listener)};
}

}  // namespace

Result<MpiRendezvous> rendezvous_by_mpi(bool is_first, const std::string& interface,
                                        const std::string& launcher) {
  const auto where = fmt::format("without --rendezvous, processes of {} meet by MPI", launcher);
  auto module = load_module("mpi");
  if (!module) return tl::unexpected(std::move(module).error().in(where));
  if ((*module)->broadcast == nullptr) return fail(Code::unsupported, where + ": it cannot");
  // The others wait for the broadcast, so an error of the first is broadcast, too.
  std::string line;
  FileDescriptor listener;
  if (is_first) {
    auto own = own_rendezvous(interface);
    if (own) listener = std::move(own->listener);
    line = own ? fmt::format("{}\n{}", own->url, own->secret.text()) : own.error().message;
  }
  auto received = (*module)->broadcast(std::as_bytes(std::span(line)));
  if (!received) return tl::unexpected(std::move(received).error().in(where));
  line.assign(reinterpret_cast<const char*>(received->data()), received->size());
  const auto end = line.find('\n');
  if (end == std::string::npos) return fail(Code::io, where + ": " + line);
  Secret secret = RESHARD_TRY(Secret::from_text(line.substr(end + 1)));
  return MpiRendezvous{line.substr(0, end), std::move(secret), std::move(listener)};
}

std::string_view version() { return RESHARD_VERSION; }

}  // namespace reshard::cli
