// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/gloo/device.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <ctime>
#include <exception>
#include <memory>

namespace reshard::gloo {
namespace {

struct FreeAddresses {
  void operator()(ifaddrs* list) const { ::freeifaddrs(list); }
};

/// The first IPv4 address of an interface that is up: with this name or address, or, if `interface`
/// is empty, of any but loopback. "" if there is none.
std::string address_of(const std::string& interface) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, FreeAddresses> list(first);
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP))
      continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    const bool wanted = interface.empty() ? (i->ifa_flags & IFF_LOOPBACK) == 0
                                          : interface == i->ifa_name || interface == text.data();
    if (wanted) return text.data();
  }
  return "";
}

}  // namespace

SignalsBlocked::SignalsBlocked(Which which) {
  sigset_t block, pending;
  sigemptyset(&block);
  if (which == Which::all) {
    sigfillset(&block);
  } else {
    sigaddset(&block, SIGPIPE);
  }
  sigpending(&pending);
  pending_ = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &block, &before_);
}

SignalsBlocked::~SignalsBlocked() {
  sigset_t pending, pipe;
  sigpending(&pending);
  if (!pending_ && sigismember(&pending, SIGPIPE) == 1) {
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    const timespec now{};
    (void)sigtimedwait(&pipe, nullptr, &now);
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Result<std::shared_ptr<::gloo::transport::Device>> make_device(const std::string& interface,
                                                               bool one_host) {
  std::string address = interface.empty() && one_host ? "127.0.0.1" : address_of(interface);
  if (address.empty() && interface.empty()) address = "127.0.0.1";
  if (address.empty()) {
    return fail(Code::invalid_argument,
                fmt::format("gloo: interface {}: this host has no such interface or IPv4 address "
                            "that is up",
                            interface));
  }
  try {
    const SignalsBlocked blocked(SignalsBlocked::Which::all);
    return ::gloo::transport::tcp::CreateDevice(::gloo::transport::tcp::attr(address.c_str()));
  } catch (const std::exception& e) {
    return fail(Code::io, fmt::format("gloo: a device for {}: {}", address, e.what()));
  }
}

}  // namespace reshard::gloo
