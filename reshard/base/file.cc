// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace reshard {
namespace {

std::string partial(const std::string& path) { return path + ".partial"; }

auto fail_at(const std::string& path, const char* what) {
  return fail(Code::io, fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

Result<FileDescriptor> open_partial(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode))
    return fail(Code::io, fmt::format("{}: is not a file", path));
  FileDescriptor file(
      ::open(partial(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!file) return fail_at(partial(path), "cannot write");
  return file;
}

Result<> write_all(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail_at(path, "cannot write");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

Result<> check_writable(const std::string& path) {
  (void)RESHARD_TRY(open_partial(path));
  if (::unlink(partial(path).c_str()) != 0) return fail_at(partial(path), "cannot remove");
  return {};
}

Result<> write_whole_file(const std::string& path, std::string_view bytes) {
  FileDescriptor file = RESHARD_TRY(open_partial(path));
  auto done = write_all(file.get(), path, bytes);
  if (done && ::close(file.release()) != 0) done = fail_at(path, "cannot write");
  if (done && std::rename(partial(path).c_str(), path.c_str()) != 0)
    done = fail_at(path, "cannot rename");
  if (!done) ::unlink(partial(path).c_str());
  return done;
}

}  // namespace reshard
