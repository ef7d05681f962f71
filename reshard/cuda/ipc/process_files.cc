// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/ipc/process_files.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

namespace reshard::ipc {

Result<std::uint64_t> process_token() {
  static std::mutex mutex;
  static pid_t of = -1;
  static std::uint64_t token = 0;
  const std::lock_guard lock(mutex);
  if (of == ::getpid()) return token;
  std::uint64_t drawn = 0;
  if (::getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
    return fail(Code::io, "getrandom failed");
  of = ::getpid();
  return token = drawn;
}

std::uint64_t pid_namespace() {
  struct stat found{};
  return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

void let_peers_take_files() {
  if (::access("/proc/sys/kernel/yama/ptrace_scope", F_OK) == 0)
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

Result<FileDescriptor> take_file(std::int32_t pid, std::int32_t file) {
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  FileDescriptor out;
  if (process)
    out = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), file, 0)));
  if (out) return out;
  return fail(Code::unsupported,
              fmt::format("taking a file of process {}: {}; both processes need the same user, and "
                          "the permission to use pidfd_getfd (in containers: SYS_PTRACE)",
                          pid, std::strerror(errno)));
}

}  // namespace reshard::ipc
