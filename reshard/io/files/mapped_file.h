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

/// A file mapped read-only, shared with all other readers of it.
///
/// Pages are loaded when first read. If another process truncates the file, reading beyond its new
/// end raises SIGBUS, as with any mapping, unless guard_mappings() is in force. Const members may
/// be called from several threads.
class MappedFile {
 public:
  /// Opens and maps a file. Errors name the path: Code::not_found if it does not exist,
  /// Code::corrupt if it is empty, Code::invalid_argument if it is a folder or not a regular file,
  /// else Code::io. Never blocks on a pipe or device. @post size() > 0
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  /// The file's size when it was opened. Bytes.
  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  /// All bytes. Valid while this object, or the one it is moved to, lives.
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  /// The file's stamp when it was opened.
  const FileStamp& stamp() const { return stamp_; }

  /// Call this after reading, before relying on what was read. Errors name the path: parts of the
  /// file could not be read; its name refers to another file or other content than when it was
  /// opened.
  Result<> unchanged() const;

  /// Announces a sequential read, so that the system reads ahead further.
  void advise_sequential() const;
  /// Asks the system to load this byte range now. The range may extend past the end.
  void prefetch(std::int64_t offset, std::int64_t bytes) const;
  /// Releases the memory of this byte range; reading it again loads it again. Calling this behind a
  /// pass over the file bounds the resident memory. The range may extend past the end.
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
