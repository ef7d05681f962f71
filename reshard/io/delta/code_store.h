// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>

#include "reshard/base/file.h"
#include "reshard/base/result.h"
#include "reshard/index/interval.h"

namespace reshard {

/// Codes on disk until it is known how large all of them are. Its file has no name, so nothing of
/// it outlives the process.
class DeltaCodeStore {
 public:
  /// Beside the file `path`, whose folder exists. Errors name a file there.
  static Result<DeltaCodeStore> create(const std::string& path);
  DeltaCodeStore(DeltaCodeStore&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::move(other.fd_)), size_(other.size_.load()) {}

  /// Appends a code and returns its first byte's offset. May be called from several threads.
  Result<Index> append(std::span<const std::byte> code);
  /// Reads what append() wrote at `offset`.
  Result<> read(Index offset, std::span<std::byte> code) const;

 private:
  DeltaCodeStore(std::string path, FileDescriptor fd)
      : path_(std::move(path)), fd_(std::move(fd)) {}
  std::string path_;
  FileDescriptor fd_;
  std::atomic<Index> size_{0};
};

}  // namespace reshard
