// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "cli/doctor/checks.h"
#include "cli/doctor/environment.h"
#include "reshard/base/closest_name.h"

namespace reshard::cli::doctor {
namespace {

using State = Finding::State;

/// "10.0.0.1"; "" for addresses that other hosts cannot use as they are.
std::string address_text(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ::inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size()) ? text.data() : "";
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (address.sa_family != AF_INET6 || IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) return "";
  return ::inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size()) ? text.data() : "";
}

void take_address(NetworkFacts& out, const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return;
  if ((entry.ifa_flags & IFF_LOOPBACK) != 0) {
    out.loopback = true;
    return;
  }
  const std::string address = address_text(*entry.ifa_addr);
  if (address.empty()) return;
  const std::string name = entry.ifa_name;
  auto at = std::ranges::find(out.interfaces, name, &NetworkFacts::Interface::name);
  if (at == out.interfaces.end()) {
    Index megabits = 0;
    std::ifstream("/sys/class/net/" + name + "/speed") >> megabits;
    out.interfaces.push_back({name, {}, std::max<Index>(0, megabits)});
    at = std::prev(out.interfaces.end());
  }
  at->addresses.push_back(address);
}

Json interfaces_json(const NetworkFacts& f) {
  Json::Array list;
  for (const auto& interface : f.interfaces) {
    Json::Array addresses;
    for (const std::string& address : interface.addresses) addresses.emplace_back(address);
    list.emplace_back(Json::Object{{"name", Json(interface.name)},
                                   {"addresses", Json(std::move(addresses))},
                                   {"megabits_per_second", Json(interface.megabits)}});
  }
  return Json(std::move(list));
}

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

bool exists(const char* path) { return ::access(path, F_OK) == 0; }

/// Why the variable's value or name is wrong; "" if it is not.
std::string wrong_with(const std::string& name, const std::string& value) {
  std::vector<std::string_view> known;
  for (const Variable& v : environment_variables()) {
    known.push_back(v.name);
    if (v.name != name) continue;
    const std::string choices = fmt::format(", {},", v.choices);
    if (v.choices.empty() || value.empty() || choices.find(", " + value + ",") != choices.npos)
      return "";
    return fmt::format("{} is none of {}", name, v.choices);
  }
  return fmt::format("reshard reads no {}{}", name, did_you_mean(name, known));
}

}  // namespace

NetworkFacts read_network() {
  NetworkFacts out;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return out;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next)
    take_address(out, *entry);
  return out;
}

Finding judge(const NetworkFacts& f) {
  constexpr std::size_t kShown = 3;
  Finding out{.name = "network",
              .figures = {{"loopback", Json(f.loopback)}, {"interfaces", interfaces_json(f)}}};
  std::vector<std::string> words;
  for (const auto& interface : f.interfaces) {
    const std::string speed =
        interface.megabits > 0 ? fmt::format(" ({} Mbit/s)", interface.megabits) : "";
    if (words.size() < kShown)
      words.push_back(fmt::format("{} {}{}", interface.name, interface.addresses.front(), speed));
  }
  if (f.interfaces.size() > kShown)
    words.push_back(fmt::format("and {} more", f.interfaces.size() - kShown));
  out.value = words.empty() ? (f.loopback ? "loopback only" : "none")
                            : fmt::format("{}", fmt::join(words, ", "));
  if (f.interfaces.empty() && !f.loopback) {
    out.state = State::problem;
    out.effect = "ranks that are processes cannot form a group: not even loopback is up";
    out.remedy = "ip link set lo up";
  } else if (f.interfaces.empty()) {
    out.state = State::note;
    out.effect = "ranks of other hosts cannot join";
    out.remedy = "docker run --network host, or a network for the container";
  }
  return out;
}

ContainerFacts read_container(const ControlGroupLimits& limits) {
  const std::pair<bool, const char*> kinds[] = {
      {is_set("KUBERNETES_SERVICE_HOST"), "Kubernetes"},
      {is_set("SLURM_JOB_ID"), "Slurm job"},
      {is_set("APPTAINER_CONTAINER"), "Apptainer"},
      {exists("/run/.containerenv"), "Podman"},
      {exists("/.dockerenv"), "Docker"},
  };
  for (const auto& [is_it, kind] : kinds)
    if (is_it) return {kind, limits.version};
  return {"", limits.version};
}

Finding judge(const ContainerFacts& f) {
  const std::string groups = f.group_version == 0
                                 ? std::string("no control groups")
                                 : fmt::format("control groups {}", f.group_version);
  return {.name = "container",
          .value = (f.kind.empty() ? "none known" : f.kind) + ", " + groups,
          .figures = {{"kind", f.kind.empty() ? Json() : Json(f.kind)},
                      {"control_groups", Json(Index{f.group_version})}}};
}

VariablesFacts read_variables() {
  VariablesFacts out;
  for (char** entry = ::environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (text.starts_with("RESHARD_") && equals != text.npos)
      out.set.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

Finding judge(const VariablesFacts& f) {
  Finding out{.name = "environment"};
  Json::Object set;
  std::vector<std::string> names, wrong;
  for (const auto& [name, value] : f.set) {
    set.push_back({name, Json(value)});
    names.push_back(name + "=" + value);
    if (std::string why = wrong_with(name, value); !why.empty()) wrong.push_back(std::move(why));
  }
  out.value =
      names.empty() ? "no RESHARD_ variable is set" : fmt::format("{}", fmt::join(names, " "));
  out.figures = {{"set", Json(std::move(set))}};
  if (!wrong.empty()) {
    out.state = State::note;
    out.effect = fmt::format("{}", fmt::join(wrong, "; "));
    out.remedy = "correct or unset it";
  }
  return out;
}

}  // namespace reshard::cli::doctor
