// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/file_stamp.h"

#include <fmt/format.h>

#include <cerrno>
#include <ctime>

#include "reshard/io/files/posix_error.h"

namespace reshard {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
/// Longer than any tick. A stamp further ahead comes from the clock of another machine.
constexpr std::int64_t kMaxTick = 20'000'000;

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * kSecond + time.tv_nsec;
}

std::string difference(const FileStamp& before, const FileStamp& now) {
  if (before.device != now.device || before.inode != now.inode)
    return "another file has its name now";
  if (before.bytes != now.bytes)
    return fmt::format("it had {} bytes and has {} now", before.bytes, now.bytes);
  return before.modified_ns != now.modified_ns ? "it was written to"
                                               : "its owner, permissions, names or content changed";
}

}  // namespace

FileStamp FileStamp::of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_size, nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

Result<FileStamp> FileStamp::of(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0)
    return files::posix_fail(path, "get the status of the file", errno);
  return of(status);
}

void outlast(const FileStamp& stamp) {
  const timespec pause{0, kMaxTick / 20};
  for (;;) {
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
    const std::int64_t behind = stamp.changed_ns - nanoseconds(now);
    if (behind < 0 || behind > kMaxTick) return;
    ::nanosleep(&pause, nullptr);
  }
}

Result<> check_unchanged(const std::string& path, const FileStamp& before) {
  auto now = FileStamp::of(path);
  const std::string what = now ? difference(before, *now) : "it is gone";
  if (now && *now == before) return {};
  return fail(Code::io,
              fmt::format("{}: changed while it was read: {}; run the command again once nothing "
                          "changes it any more",
                          path, what));
}

}  // namespace reshard
