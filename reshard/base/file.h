// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>

#include "reshard/base/result.h"

namespace reshard {

/// Owns an open file descriptor and closes it.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  /// Gives the descriptor to the caller, who closes it.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Checks that write_whole_file() could write this file: creates "PATH.partial" and removes it.
/// Errors: `io` names the path.
Result<> check_writable(const std::string& path);

/// Writes a file that appears complete or not at all: as "PATH.partial", which is then renamed to
/// PATH and replaces what was there. Errors: `io` names the path; PATH is then unchanged.
Result<> write_whole_file(const std::string& path, std::string_view bytes);

}  // namespace reshard
