// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "reshard/base/file.h"
#include "reshard/base/result.h"

namespace reshard::files {

/// Checks that a name from untrusted input stays in its folder: not empty, "." or "..", at most 255
/// bytes, no slash, backslash or control character.
Result<> check_file_name(std::string_view name);

/// Creates a file of `bytes` bytes for writing, allocated in full if the file system supports that.
/// Errors name the path: it exists, its folder does not, permission, fewer than `bytes` bytes free
/// (checked first). Leaves no file on error. @pre bytes >= 0
Result<FileDescriptor> create_file(const std::string& path, std::int64_t bytes);

/// Writes all of `data` at byte `offset`. Errors name `path`.
Result<> write_all(int fd, const std::string& path, std::span<const std::byte> data,
                   std::int64_t offset);

/// Writes the pieces one after another, starting at byte `offset`. Errors name `path`.
Result<> write_all(int fd, const std::string& path,
                   std::span<const std::span<const std::byte>> pieces, std::int64_t offset);

/// Closes a written file; with `sync`, first flushes it to the disk. Errors name `path`.
Result<> close_written(FileDescriptor fd, const std::string& path, bool sync);

/// Flushes a folder's entries to the disk. Errors name the folder.
Result<> sync_folder(const std::string& path);

/// Creates a file with this text. Errors as create_file and write_all. Leaves no file on error.
Result<> write_text_file(const std::string& path, std::string_view text, bool sync = false);

}  // namespace reshard::files
