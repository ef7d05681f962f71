// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/traced/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "reshard/base/file.h"

namespace reshard::traced {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kSaid = 2048;

struct Pipe {
  FileDescriptor read, write;
};

tl::unexpected<Error> failed(const std::string& what, int number) {
  const Code code = number == ENOENT ? Code::not_found : Code::io;
  return fail(code, fmt::format("{}: {}", what, std::strerror(number)));
}

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return failed("pipe", errno);
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

Result<pid_t> start(std::vector<std::string> arguments, int in, int errors) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  // The caller may have blocked signals that the child needs in order to be ended.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  std::vector<char*> pointers;
  for (std::string& text : arguments) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  const int error =
      ::posix_spawnp(&pid, pointers[0], &actions, &attributes, pointers.data(), ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return failed(fmt::format("cannot start '{}'", arguments[0]), error);
  return pid;
}

/// Appends what can be read, and keeps the end. False at the end of the stream.
bool read_some(int fd, std::string& said) {
  std::array<char, 4096> part{};
  const ssize_t n = ::read(fd, part.data(), part.size());
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  said.append(part.data(), static_cast<std::size_t>(n));
  if (said.size() > 2 * kSaid) said.erase(0, said.size() - kSaid);
  return n > 0;
}

/// Reads until the process has ended. False if it has not by then.
bool wait_for_end(pid_t pid, int errors, Clock::time_point until, std::string& said) {
  // A descriptor of the process: processes that it left behind may keep its errors open.
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  bool open = true;
  while (true) {
    std::array<pollfd, 2> fds{{{open ? errors : -1, POLLIN, 0}, {process.get(), POLLIN, 0}}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    const int ready =
        ::poll(fds.data(), fds.size(), static_cast<int>(std::min<long>(left, 60'000)));
    if (ready > 0 && fds[0].revents != 0)
      open = read_some(errors, said);
    else if (ready > 0 && fds[1].revents != 0)
      return true;
    if (!open && process.get() < 0) return true;  // a kernel without such descriptors
  }
}

}  // namespace

Result<ChildEnd> run_child(const std::vector<std::string>& arguments, double seconds) {
  Pipe in = RESHARD_TRY(make_pipe());
  Pipe errors = RESHARD_TRY(make_pipe());
  const pid_t pid = RESHARD_TRY(start(arguments, in.read.get(), errors.write.get()));
  errors.write = FileDescriptor();
  in.read = FileDescriptor();
  ChildEnd end;
  const auto limit = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e6)));
  end.timed_out = !wait_for_end(pid, errors.read.get(), Clock::now() + limit, end.said);
  if (end.timed_out) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return failed("waitpid", errno);
  end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  if (end.said.size() > kSaid) end.said.erase(0, end.said.size() - kSaid);
  while (!end.said.empty() && end.said.back() == '\n') end.said.pop_back();
  return end;
}

}  // namespace reshard::traced
