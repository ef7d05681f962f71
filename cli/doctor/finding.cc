// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/finding.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>

#include "reshard/base/file.h"

namespace reshard::cli::doctor {
namespace {

constexpr std::array kStates = {"ok", "note", "absent", "problem"};

std::string text_at(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->string() != nullptr ? *value->string() : "";
}

Finding from_json(const Json& object) {
  Finding out{.name = text_at(object, "name"),
              .value = text_at(object, "value"),
              .effect = text_at(object, "effect"),
              .remedy = text_at(object, "remedy")};
  const std::string state = text_at(object, "state");
  for (std::size_t i = 0; i < kStates.size(); ++i)
    if (state == kStates[i]) out.state = static_cast<Finding::State>(i);
  if (const Json* figures = object.find("figures"); figures != nullptr && figures->object())
    out.figures = *figures->object();
  return out;
}

std::string as_text(const std::vector<Finding>& findings) {
  Json::Array list;
  for (const Finding& finding : findings) list.push_back(to_json(finding));
  return Json(std::move(list)).dump();
}

/// The whole life of the child process.
[[noreturn]] void answer(int pipe, const std::function<std::vector<Finding>()>& look) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // A child that hangs must not keep the reader of a pipe waiting.
  if (const int null = ::open("/dev/null", O_RDWR); null >= 0)
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, stream);
  const std::string text = as_text(look());
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t n = ::write(pipe, text.data() + written, text.size() - written);
    if (n <= 0) ::_exit(1);
    written += static_cast<std::size_t>(n);
  }
  ::_exit(0);
}

/// All that a child writes until it closes the pipe; none if it does not before the deadline.
std::optional<std::string> read_all(int pipe, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  std::string text;
  for (std::array<char, 4096> part;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd waiting{pipe, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) == 0)
      return std::nullopt;
    const ssize_t n = ::read(pipe, part.data(), part.size());
    if (n == 0) return text;
    if (n > 0) text.append(part.data(), static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR && errno != EAGAIN) return text;
  }
}

/// Ends a child that may be in a call that no signal ends: it is waited for briefly only.
int end_child(pid_t pid, bool answered) {
  int status = 0;
  if (answered) return ::waitpid(pid, &status, 0) == pid ? status : 0;
  ::kill(pid, SIGKILL);
  for (int i = 0; i < 20 && ::waitpid(pid, &status, WNOHANG) == 0; ++i) ::usleep(5000);
  return 0;
}

}  // namespace

std::string name(Finding::State state) { return kStates.at(static_cast<std::size_t>(state)); }

Json to_json(const Finding& finding) {
  return Json(Json::Object{{"name", Json(finding.name)},
                           {"state", Json(name(finding.state))},
                           {"value", Json(finding.value)},
                           {"effect", Json(finding.effect)},
                           {"remedy", Json(finding.remedy)},
                           {"figures", Json(finding.figures)}});
}

std::vector<Finding> look_in_child(const std::string& name, double seconds,
                                   Finding::State otherwise,
                                   const std::function<std::vector<Finding>()>& look) {
  const auto failed = [&](std::string value, std::string effect) {
    return std::vector<Finding>{
        {.name = name, .state = otherwise, .value = std::move(value), .effect = std::move(effect)}};
  };
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return failed("unknown", std::strerror(errno));
  const FileDescriptor read(ends[0]);
  FileDescriptor write(ends[1]);
  const pid_t pid = ::fork();
  if (pid == 0) answer(write.get(), look);
  if (pid < 0) return failed("unknown", fmt::format("fork: {}", std::strerror(errno)));
  write = FileDescriptor();
  const auto text = read_all(read.get(), seconds);
  const int status = end_child(pid, text.has_value());
  if (!text)
    return failed(fmt::format("no answer within {} s", seconds), "whoever uses it hangs, too");
  if (WIFSIGNALED(status))
    return failed(fmt::format("the test was killed by signal {}", WTERMSIG(status)),
                  "whoever uses it may crash, too");
  const auto list = parse_json(*text);
  if (!list || list->array() == nullptr) return failed("unknown", "the test gave no answer");
  std::vector<Finding> out;
  for (const Json& object : *list->array()) out.push_back(from_json(object));
  return out;
}

}  // namespace reshard::cli::doctor
