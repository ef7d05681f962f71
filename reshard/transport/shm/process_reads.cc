// SPDX-License-Identifier: Apache-2.0
#include "reshard/transport/shm/process_reads.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "reshard/base/file.h"
#include "reshard/transport/process_reads.h"

namespace reshard {
namespace shm {

void let_peers_read() {
  if (access("/proc/sys/kernel/yama/ptrace_scope", F_OK) == 0)
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

bool reads_memory_of(pid_t pid, std::uint64_t address, std::uint64_t expected) {
  std::uint64_t value = 0;
  const iovec local{&value, sizeof value};
  const iovec remote{reinterpret_cast<void*>(address), sizeof value};
  errno = 0;
  return process_vm_readv(pid, &local, 1, &remote, 1, 0) == sizeof value && value == expected;
}

}  // namespace shm

namespace {

constexpr int kMilliseconds = 5000;

struct Pipe {
  FileDescriptor read, write;
  Pipe() {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) == 0) {
      read = FileDescriptor(ends[0]);
      write = FileDescriptor(ends[1]);
    }
  }
};

/// A child process, which ends with this object or with its parent.
class Child {
 public:
  template <class Body>
  explicit Child(Body body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

template <class T>
bool read_within(int fd, T& value) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, kMilliseconds) == 1 &&
         ::read(fd, &value, sizeof value) == sizeof value;
}

std::string why_refused(int error) {
  std::string scope;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  if (error == EPERM && scope >= "2")
    return fmt::format("kernel.yama.ptrace_scope is {}, which lets nobody read", scope);
  if (error == ENOSYS || error == EPERM)
    return fmt::format("process_vm_readv: {}; a filter of system calls forbids it",
                       std::strerror(error));
  return fmt::format("process_vm_readv: {}",
                     error == 0 ? "read other bytes" : std::strerror(error));
}

}  // namespace

std::string process_reads_unavailable() {
  // As ranks are: neither process is the other's parent, which Yama would prefer.
  volatile std::uint64_t value = 0x7265736861726421;
  const auto address = reinterpret_cast<std::uint64_t>(&value);
  const Pipe ready, answer;
  if (!ready.read || !answer.read) return fmt::format("pipe: {}", std::strerror(errno));
  const Child held([&] {
    shm::let_peers_read();
    const char byte = 0;
    if (::write(ready.write.get(), &byte, 1) == 1) ::pause();
  });
  const Child reader([&] {
    char byte = 0;
    int error = ECHILD;
    if (read_within(ready.read.get(), byte))
      error = shm::reads_memory_of(held.pid(), address, value) ? -1 : errno;
    [[maybe_unused]] const auto written = ::write(answer.write.get(), &error, sizeof error);
  });
  if (held.pid() < 0 || reader.pid() < 0) return "no child process can be started";
  int error = 0;
  if (!read_within(answer.read.get(), error)) return "the child processes do not answer";
  return error == -1 ? "" : why_refused(error);
}

}  // namespace reshard
