// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "reshard/io/files/json.h"
#include "reshard/io/files/new_file.h"
#include "reshard/io/files/posix_error.h"

namespace reshard::files {
namespace {

constexpr std::size_t kMaxFileName = 255;

/// Checks the space before writing: filling the disk would harm other processes too.
Result<> check_free_space(int fd, const std::string& path, std::int64_t bytes) {
  struct statvfs disk{};
  if (::fstatvfs(fd, &disk) != 0) return posix_fail(path, "read the free space of the disk", errno);
  std::uint64_t free = 0;
  if (__builtin_mul_overflow(disk.f_bavail, disk.f_frsize, &free)) return {};
  if (static_cast<std::uint64_t>(bytes) > free)
    return fail(Code::io, fmt::format("{}: the disk is full: {} bytes are needed, {} are free",
                                      path, bytes, free));
  return {};
}

Result<> allocate(int fd, const std::string& path, std::int64_t bytes) {
  if (bytes == 0) return {};
  int status = 0;
  do {
    status = ::fallocate(fd, 0, 0, bytes);
  } while (status != 0 && errno == EINTR);
  if (status == 0) return {};
  if (errno != EOPNOTSUPP) return posix_fail(path, fmt::format("allocate {} bytes", bytes), errno);
  // posix_fallocate would now write every block; let the file grow instead.
  if (::ftruncate(fd, bytes) != 0) return posix_fail(path, "set the file's size", errno);
  return {};
}

tl::unexpected<Error> write_failed(const std::string& path, ssize_t result) {
  return posix_fail(path, "write the file", result == 0 ? ENOSPC : errno);
}

}  // namespace

Result<> check_file_name(std::string_view name) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (name.empty() || name == "." || name == ".." || name.size() > kMaxFileName ||
      name.find_first_of("/\\") != name.npos || std::any_of(name.begin(), name.end(), control))
    return fail(Code::corrupt, fmt::format("file name {} must be a plain name in the same folder",
                                           in_quotes(name)));
  return {};
}

Result<FileDescriptor> create_file(const std::string& path, std::int64_t bytes) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd && errno == EEXIST)
    return fail(
        Code::invalid_argument,
        fmt::format("{}: exists and is not overwritten; remove it or choose another name", path));
  if (!fd && errno == ENOENT)
    return fail(Code::not_found,
                fmt::format("{}: its folder does not exist; create that first", path));
  if (!fd) return posix_fail(path, "create the file", errno);
  auto ready = check_free_space(fd.get(), path, bytes).and_then([&] {
    return allocate(fd.get(), path, bytes);
  });
  if (!ready) {
    ::unlink(path.c_str());
    return tl::unexpected(std::move(ready).error());
  }
  return fd;
}

Result<> write_all(int fd, const std::string& path, std::span<const std::byte> data,
                   std::int64_t offset) {
  while (!data.empty()) {
    const auto n = ::pwrite(fd, data.data(), data.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return write_failed(path, n);
    data = data.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
  return {};
}

Result<> write_all(int fd, const std::string& path,
                   std::span<const std::span<const std::byte>> pieces, std::int64_t offset) {
  constexpr std::size_t kBatch = 256;
  std::array<iovec, kBatch> batch{};
  std::size_t skip = 0;  // bytes of the first piece that are written
  while (!pieces.empty()) {
    const auto n = std::min(kBatch, pieces.size());
    for (std::size_t i = 0; i < n; ++i) {
      const auto piece = pieces[i].subspan(i == 0 ? skip : 0);
      batch[i] = {const_cast<std::byte*>(piece.data()), piece.size()};
    }
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < n; ++i) wanted += batch[i].iov_len;
    auto written = wanted == 0 ? 0 : ::pwritev(fd, batch.data(), static_cast<int>(n), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 || (written == 0 && wanted > 0)) return write_failed(path, written);
    offset += written;
    auto done = static_cast<std::size_t>(written) + skip;
    while (!pieces.empty() && done >= pieces[0].size()) {
      done -= pieces[0].size();
      pieces = pieces.subspan(1);
    }
    skip = done;
  }
  return {};
}

Result<> close_written(FileDescriptor fd, const std::string& path, bool sync) {
  if (sync && ::fsync(fd.get()) != 0) return posix_fail(path, "flush the file to the disk", errno);
  // Some file systems report a full disk or quota only here.
  if (::close(fd.release()) != 0) return posix_fail(path, "close the written file", errno);
  return {};
}

Result<> sync_folder(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return posix_fail(path, "open the folder", errno);
  if (::fsync(fd.get()) != 0) return posix_fail(path, "flush the folder to the disk", errno);
  return {};
}

Result<> write_text_file(const std::string& path, std::string_view text, bool sync) {
  auto fd = RESHARD_TRY(create_file(path, 0));
  auto done = write_all(fd.get(), path, std::as_bytes(std::span(text)), 0).and_then([&] {
    return close_written(std::move(fd), path, sync);
  });
  if (!done) ::unlink(path.c_str());
  return done;
}

}  // namespace reshard::files

namespace reshard {

Result<NewFile> NewFile::create(const std::string& path, std::int64_t bytes) {
  return NewFile(path, RESHARD_TRY(files::create_file(path, bytes)));
}

Result<> NewFile::write_at(std::int64_t offset, std::span<const std::byte> data) const {
  return files::write_all(fd_.get(), path_, data, offset);
}

Result<> NewFile::close(bool sync) { return files::close_written(std::move(fd_), path_, sync); }

}  // namespace reshard
