// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "reshard/base/file.h"
#include "reshard/base/result.h"

namespace reshard {

/// A file of known size that is filled in any order. Stays where it is if it is not closed.
class NewFile {
 public:
  /// Creates it, allocated in full if the file system supports that. Errors name the path: it
  /// exists, its folder does not, permission, fewer than `bytes` bytes free. Leaves no file on
  /// error.
  /// @pre bytes >= 0
  static Result<NewFile> create(const std::string& path, std::int64_t bytes);

  /// Writes all of `data` at byte `offset`. May be called from several threads. Errors name the
  /// path.
  Result<> write_at(std::int64_t offset, std::span<const std::byte> data) const;
  /// Closes it; with `sync`, once its data is on the disk. Errors name the path. Call it once,
  /// last.
  Result<> close(bool sync);

 private:
  NewFile(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  FileDescriptor fd_;
};

}  // namespace reshard
