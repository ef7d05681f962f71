// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

#include "reshard/base/result.h"

namespace reshard {

/// Identifies a file's content: writing to, truncating or replacing the file changes its stamp.
/// Only writes through a shared mapping may leave it unchanged, on file systems that keep no time
/// of them.
struct FileStamp {
  std::uint64_t device = 0, inode = 0;
  std::int64_t bytes = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;  ///< mtime and ctime, since 1970.

  static FileStamp of(const struct stat& status);
  /// The stamp of the file at `path`; follows links. Errors name the path.
  static Result<FileStamp> of(const std::string& path);

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

/// Waits until any later change of the file changes its stamp. File times tick every few
/// milliseconds, so a file changed just now could otherwise change again unnoticed.
void outlast(const FileStamp& stamp);

/// Checks that the file still has this stamp. The error names the path and the difference.
Result<> check_unchanged(const std::string& path, const FileStamp& before);

}  // namespace reshard
