// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "reshard/base/result.h"
#include "reshard/io/files/file_stamp.h"
#include "reshard/io/files/mapping_guard.h"

namespace reshard {

/// The bytes of a file, mapped read-only and shared with every other reader of it.
///
/// Pages come in when they are first read. A file that another process truncates meanwhile ends
/// this one with SIGBUS, as for every mapping, but not under guard_mappings(). Const members may be
/// called from several threads.
class MappedFile {
 public:
  /// @post size() > 0. Errors name the path and the cause: Code::not_found when it does not exist,
  /// Code::corrupt when it is empty, Code::invalid_argument when it is a folder or no regular file,
  /// else Code::io. Never blocks on a pipe or device.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  /// Bytes of the file when it was opened.
  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  /// All bytes; valid as long as this object or the one it is moved to lives.
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  /// Of the file when it was opened.
  const FileStamp& stamp() const { return stamp_; }

  /// To ask after reading, before what was read counts. Errors name the path: parts of it could not
  /// be read; its name stands for another file, or for other content, than when it was opened.
  Result<> unchanged() const;

  /// Says that the file will be read from front to back, so that the system reads ahead further.
  void advise_sequential() const;
  /// Asks the system to start reading this byte range now. The range may reach past the end.
  void prefetch(std::int64_t offset, std::int64_t bytes) const;
  /// Gives the memory of this byte range back; what is read again is fetched again. Calling it
  /// behind a pass over the file keeps the resident memory bounded. The range may reach past the
  /// end.
  void drop(std::int64_t offset, std::int64_t bytes) const;

 private:
  MappedFile(std::string path, void* data, const FileStamp& stamp);
  void advise(std::int64_t offset, std::int64_t bytes, int advice) const;

  std::string path_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  FileStamp stamp_;
  files::GuardedMapping* guarded_ = nullptr;
};

}  // namespace reshard
