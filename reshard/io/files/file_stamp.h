// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "reshard/base/result.h"

namespace reshard {

/// Which content of a file one has to do with: a file that is written to, cut or replaced later has
/// another stamp. Only what a program writes through a mapping of its own may leave it as it is, on
/// some file systems.
struct FileStamp {
  std::uint64_t device = 0, inode = 0;
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;  ///< mtime and ctime, since 1970.

  static FileStamp of(const struct stat& status);
  /// Of the file behind that name, links followed. Errors name the path.
  static Result<FileStamp> of(const std::string& path);

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// Returns once a change of the file would get another stamp: the clock that files are stamped with
/// ticks every few milliseconds, so that one changed just now could change again unseen.
void outlast(const FileStamp& stamp);

/// Error, naming the path and what is different, when the file has another stamp by now.
Result<> check_unchanged(const std::string& path, const FileStamp& before);

}  // namespace reshard
