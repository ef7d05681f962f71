// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/writers.h"

#include <fcntl.h>

#include <cerrno>
#include <csignal>

#include "reshard/base/file.h"

namespace reshard {

bool is_open_for_writing(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return false;
  // Whoever opens the file before the lease is given back breaks it. The signal about that must not
  // be the usual one, which ends the process; this one is ignored by default.
  ::fcntl(fd.get(), F_SETSIG, SIGURG);
  if (::fcntl(fd.get(), F_SETLEASE, F_RDLCK) != 0) return errno == EAGAIN;
  ::fcntl(fd.get(), F_SETLEASE, F_UNLCK);
  return false;
}

}  // namespace reshard
