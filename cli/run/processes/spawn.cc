// SPDX-License-Identifier: Apache-2.0
#include "cli/run/processes/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/run/processes/heartbeat.h"
#include "cli/run/processes/shared_memory_names.h"
#include "cli/run/processes/spawned.h"
#include "reshard/base/file.h"
#include "reshard/transport/checks.h"
#include "reshard/transport/rendezvous.h"

namespace reshard::cli {
namespace {

using Clock = std::chrono::steady_clock;
/// How long ranks may live on after one of them failed, and after one reported its error.
constexpr auto kGrace = std::chrono::seconds(10), kGraceOfTold = std::chrono::seconds(3);
/// Fewer seconds without a heartbeat do not count: a busy machine may not run a process for a
/// while.
constexpr double kLeastStill = 5;

/// This program's command line, as the system recorded it.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string one; std::getline(file, one, '\0');) arguments.push_back(one);
  return arguments;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

Error system_error(const std::string& what, int number) {
  return {Code::io, fmt::format("{}: {}", what, std::strerror(number))};
}

/// Blocks signals, which wait() then takes one by one; restores them at the end.
class HeldSignals {
 public:
  HeldSignals() {
    ::sigemptyset(&held_);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) ::sigaddset(&held_, signal);
    ::sigprocmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// The next signal, or 0 if none came within a tenth of a second.
  int wait() const {
    const timespec limit{0, 100'000'000};
    return std::max(0, ::sigtimedwait(&held_, nullptr, &limit));
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t held_{}, before_{};
};

struct Child {
  pid_t pid = 0;
  bool running = true;
  bool stood_still = false;  ///< and was killed for it.
  int status = 0;
};

/// Both ends of an unnamed rendezvous: rank 0's and all others'.
struct Door {
  FileDescriptor first, others;
};
Result<Door> make_door() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return tl::unexpected(system_error("socketpair", errno));
  return Door{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

class Family {
 public:
  Family(const Spawning& spawning, Heartbeats heartbeats)
      : spawning_(spawning), heartbeats_(std::move(heartbeats)) {}
  ~Family() {
    send(SIGKILL);
    for (Child& c : children_)
      if (c.running) ::waitpid(c.pid, &c.status, 0);
    for (const std::string& name : left_) ::unlink(name.c_str());
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  Result<> start() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return tl::unexpected(system_error("pipe", errno));
    reports_ = FileDescriptor(ends[0]);
    FileDescriptor writing(ends[1]);
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    std::optional<Door> door;
    if (spawning_.rendezvous.empty()) door = RESHARD_TRY(make_door());
    for (int i = 0; i < spawning_.count; ++i) {
      Spawned spawned{i, spawning_.count, writing.get(), heartbeats_.fd(), ""};
      int meets = -1;
      if (door) {
        meets = (spawning_.first + i == 0 ? door->first : door->others).get();
        spawned.rendezvous = fmt::format("fd://{}", meets);
      }
      RESHARD_TRY(start_one(spawned, meets));
    }
    return {};
  }

  /// Waits until the last has ended.
  Result<int> watch() {
    std::optional<Clock::time_point> end_at;
    while (running() > 0) {
      const int signal = signals_.wait();
      if (signal != 0 && signal != SIGCHLD) {
        send(interrupts_++ == 0 ? SIGTERM : SIGKILL);
        if (signal != SIGHUP) note_interrupt(signal);
      }
      read_reports();
      reap();
      end_the_still();
      // A rank that reports its error has waited for the others, so one that still stands still is
      // stuck.
      if (!end_at && !reported_.empty()) end_at = Clock::now() + kGraceOfTold;
      if (!end_at && (interrupts_ > 0 || has_failed())) end_at = Clock::now() + kGrace;
      if (end_at && Clock::now() >= *end_at) send(SIGKILL);
    }
    read_reports();
    return verdict();
  }

 private:
  /// `meets`: the descriptor of the rendezvous, or -1.
  Result<> start_one(const Spawned& spawned, int meets) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    // The same descriptor numbers, without close-on-exec.
    for (const int fd : {spawned.report_fd, spawned.heartbeat_fd, meets})
      if (fd >= 0) ::posix_spawn_file_actions_adddup2(&actions, fd, fd);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setsigmask(&attributes, &signals_.before());
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    auto arguments = own_arguments();
    std::vector<std::string> environment{spawned.environment_entry(::getpid())};
    for (char** e = ::environ; *e != nullptr; ++e) environment.emplace_back(*e);
    Child child;
    const int error = ::posix_spawn(&child.pid, "/proc/self/exe", &actions, &attributes,
                                    pointers(arguments).data(), pointers(environment).data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0)
      return tl::unexpected(system_error(
          fmt::format("cannot start the process of rank {}", spawning_.first + spawned.index),
          error));
    children_.push_back(child);
    return {};
  }

  void read_reports() {
    char part[4096];
    for (ssize_t n = 0; (n = ::read(reports_.get(), part, sizeof part)) > 0;)
      text_.append(part, static_cast<std::size_t>(n));
    for (auto end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      if (auto error = parse_reported_error(text_.substr(0, end)))
        reported_.push_back(*std::move(error));
      text_.erase(0, end + 1);
    }
  }

  void reap() {
    for (Child& c : children_)
      if (c.running && ::waitpid(c.pid, &c.status, WNOHANG) == c.pid) {
        c.running = false;
        if (WIFSIGNALED(c.status) && !first_killed_ && !killing_ && !c.stood_still)
          first_killed_ = static_cast<int>(&c - children_.data());
      }
  }

  /// Kills ranks that are stopped: they cannot notice that their deadline has passed.
  void end_the_still() {
    heartbeats_.look();
    const std::chrono::duration<double> limit(std::max(spawning_.deadline_seconds, kLeastStill));
    for (std::size_t i = 0; i < children_.size(); ++i) {
      Child& c = children_[i];
      if (!c.running || c.stood_still || !heartbeats_.silent_for(static_cast<int>(i), limit))
        continue;
      c.stood_still = true;
      kill_one(c);
    }
  }

  Result<int> verdict() const {
    if (interrupted()) return tl::unexpected(interruption());
    if (first_killed_) {
      const int signal = WTERMSIG(children_[static_cast<std::size_t>(*first_killed_)].status);
      return fail(Code::aborted,
                  fmt::format("rank {} was killed by signal {} ({})",
                              spawning_.first + *first_killed_, signal, ::strsignal(signal)));
    }
    const auto still = [&](std::size_t r) {
      const auto first = static_cast<std::size_t>(spawning_.first);
      return r >= first && r - first < children_.size() && children_[r - first].stood_still;
    };
    if (std::ranges::any_of(children_, &Child::stood_still))
      return fail(
          Code::deadline,
          fmt::format(
              "{} stood still for {} s and had to be killed",
              list_ranks(static_cast<std::size_t>(spawning_.first) + children_.size(), still),
              std::max(spawning_.deadline_seconds, kLeastStill)));
    if (!reported_.empty()) return tl::unexpected(cause());
    for (std::size_t i = 0; i < children_.size(); ++i)
      if (children_[i].status != 0)
        return fail(Code::aborted,
                    WIFEXITED(children_[i].status)
                        ? fmt::format("rank {} ended with exit code {} and said nothing",
                                      spawning_.first + static_cast<int>(i),
                                      WEXITSTATUS(children_[i].status))
                        : fmt::format("rank {} did not end in time and was killed",
                                      spawning_.first + static_cast<int>(i)));
    return 0;
  }

  /// A rank that got a signal knows why it ended. A rank that was aborted only repeats the reason
  /// of another, and of those that waited in vain the first knows best for whom: it is the one that
  /// all others come to.
  Error cause() const {
    const auto order = [this](const ReportedError& t) {
      if (was_interrupted(t.index)) return std::pair(-1, 0);
      if (t.error.code == Code::aborted) return std::pair(2, 0);
      return t.error.code == Code::deadline ? std::pair(1, t.index) : std::pair(0, 0);
    };
    return std::ranges::min_element(reported_, {}, order)->error;
  }

  bool was_interrupted(int index) const {
    const auto i = static_cast<std::size_t>(index);
    const int status = i < children_.size() ? children_[i].status : 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == kInterrupted;
  }

  void send(int signal) {
    killing_ |= signal == SIGKILL;
    for (const Child& c : children_) {
      if (!c.running) continue;
      if (signal == SIGKILL) {
        kill_one(c);
      } else {
        ::kill(c.pid, signal);
      }
    }
  }
  void kill_one(const Child& child) {
    left_.merge(shared_memory_names(child.pid));
    ::kill(child.pid, SIGKILL);
  }
  std::ptrdiff_t running() const {
    return std::ranges::count_if(children_, [](const Child& c) { return c.running; });
  }
  bool has_failed() const {
    return std::ranges::any_of(children_,
                               [](const Child& c) { return !c.running && c.status != 0; });
  }

  const Spawning& spawning_;
  HeldSignals signals_;
  Heartbeats heartbeats_;
  FileDescriptor reports_;
  std::vector<Child> children_;
  std::set<std::string> left_;  ///< names that a killed process may not have removed.
  std::string text_;
  std::vector<ReportedError> reported_;  ///< in the order of arrival.
  std::optional<int> first_killed_;
  bool killing_ = false;
  int interrupts_ = 0;
};

}  // namespace

Result<int> spawn_ranks(const Spawning& spawning) {
  Result<int> outcome = 0;
  {
    Family family(spawning, RESHARD_TRY(Heartbeats::make(spawning.count)));
    RESHARD_TRY(family.start());
    outcome = family.watch();
  }
  // A rank 0 that was killed during the rendezvous could not remove its files.
  if (spawning.first == 0 && !spawning.rendezvous.empty()) {
    RendezvousOptions left;
    left.url = spawning.rendezvous;
    left.job = spawning.job;
    remove_dead_rendezvous(left);
  }
  return outcome;
}

}  // namespace reshard::cli
