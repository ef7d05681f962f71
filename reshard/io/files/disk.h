// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "reshard/base/file_descriptor.h"
#include "reshard/base/result.h"

namespace reshard::files {

/// Refuses what could lead out of the folder: a file name that is empty, "." or "..",
/// longer than 255 bytes, or has a slash, a backslash or a control character.
Result<> check_file_name(std::string_view name);

/// Creates `path` for writing, of `bytes` bytes, all of them allocated where the file system can do
/// that. Errors name the path: it exists, its folder does not, permission, less than `bytes` free
/// (checked first). On error no file is left. @pre bytes >= 0
Result<FileDescriptor> create_file(const std::string& path, std::int64_t bytes);

/// Writes all of `data` at byte `offset`. Errors name `path`.
Result<> write_all(int fd, const std::string& path, std::span<const std::byte> data,
                   std::int64_t offset);

/// Writes the pieces one after another from byte `offset` on. Errors name `path`.
Result<> write_all(int fd, const std::string& path,
                   std::span<const std::span<const std::byte>> pieces, std::int64_t offset);

/// Closes a file that was written, first waiting for the disk when `sync`. Errors name `path`.
Result<> close_written(FileDescriptor fd, const std::string& path, bool sync);

/// Waits until what a folder lists is on the disk. Errors name the folder.
Result<> sync_folder(const std::string& path);

/// Creates `path` with this text. The same errors as create_file and write_all; on error no file is
/// left.
Result<> write_text_file(const std::string& path, std::string_view text, bool sync = false);

}  // namespace reshard::files
