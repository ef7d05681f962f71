// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/spawned.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <vector>

#include "cli/run/processes/heartbeat.h"

namespace reshard::cli {
namespace {

constexpr const char* kVariable = "RESHARD_SPAWNED";

/// The numbers before the text: "3/8/5/6/1234/".
bool take_numbers(std::string_view& text, std::initializer_list<int*> numbers) {
  for (int* number : numbers) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (error != std::errc() || stop == text.data() + text.size() || *stop != '/') return false;
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()) + 1);
  }
  return true;
}

}  // namespace

std::optional<Spawned> Spawned::of_environment() {
  const char* value = std::getenv(kVariable);
  if (value == nullptr) return std::nullopt;
  std::string_view rest = value;
  Spawned s;
  int parent = 0;
  if (!take_numbers(rest, {&s.index, &s.count, &s.report_fd, &s.heartbeat_fd, &parent}))
    return std::nullopt;
  s.rendezvous = rest;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) std::_Exit(1);
  start_heartbeat(s.heartbeat_fd, s.index);
  return s;
}

std::string Spawned::environment_entry(int parent) const {
  return fmt::format("{}={}/{}/{}/{}/{}/{}", kVariable, index, count, report_fd, heartbeat_fd,
                     parent, rendezvous);
}

void report_to_parent(const Spawned& spawned, const Error& error) {
  std::string line =
      fmt::format("{}/{}/{}", spawned.index, static_cast<int>(error.code), error.message);
  for (char& c : line)
    if (c == '\n') c = ' ';
  // One write of at most PIPE_BUF bytes stays in one piece among those of other processes.
  line.resize(std::min(line.size(), std::size_t{PIPE_BUF - 1}));
  line += '\n';
  (void)!::write(spawned.report_fd, line.data(), line.size());
}

std::optional<ReportedError> parse_reported_error(const std::string& line) {
  ReportedError reported;
  std::string_view rest = line;
  int code = 0;
  if (!take_numbers(rest, {&reported.index, &code})) return std::nullopt;
  reported.error = {static_cast<Code>(code), std::string(rest)};
  return reported;
}

}  // namespace reshard::cli
