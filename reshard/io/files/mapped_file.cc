// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/files/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "reshard/base/file.h"
#include "reshard/io/files/posix_error.h"

namespace reshard {
namespace {

/// A fault maps pages around it too: 64 KiB by default, up to a large folio of the page cache.
/// Bytes.
constexpr std::int64_t kFaultAround = std::int64_t{2} << 20;

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe would wait for a writer; regular files ignore it.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return files::posix_fail(path, "open the file", errno);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0)
    return files::posix_fail(path, "read the file's size", errno);
  if (S_ISDIR(status.st_mode))
    return fail(Code::invalid_argument, fmt::format("{}: is a folder, must be a file", path));
  if (!S_ISREG(status.st_mode))
    return fail(Code::invalid_argument,
                fmt::format("{}: is not a regular file (a pipe, socket or device)", path));
  if (status.st_size == 0) return fail(Code::corrupt, fmt::format("{}: the file is empty", path));
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return files::posix_fail(path, "map the file", errno);
  const FileStamp stamp = FileStamp::of(status);
  outlast(stamp);
  return MappedFile(path, data, stamp);
}

MappedFile::MappedFile(std::string path, void* data, const FileStamp& stamp)
    : path_(std::move(path)),
      data_(data),
      size_(static_cast<std::size_t>(stamp.bytes)),
      stamp_(stamp),
      guarded_(files::enter_mapping(data, size_)) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      stamp_(other.stamp_),
      guarded_(std::exchange(other.guarded_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(stamp_, other.stamp_);
  std::swap(guarded_, other.guarded_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  files::leave_mapping(guarded_);
  ::munmap(data_, size_);
}

Result<> MappedFile::unchanged() const {
  RESHARD_TRY(check_unchanged(path_, stamp_));
  if (!guarded_->lost) return {};
  return fail(Code::io,
              fmt::format("{}: part of it cannot be read; the disk may have failed, or it "
                          "was truncated for a while",
                          path_));
}

void MappedFile::advise_sequential() const { advise(0, size(), MADV_SEQUENTIAL); }
void MappedFile::prefetch(std::int64_t offset, std::int64_t bytes) const {
  advise(offset, bytes, MADV_WILLNEED);
}
void MappedFile::drop(std::int64_t offset, std::int64_t bytes) const {
  if (bytes <= 0 || offset < 0 || offset >= size()) return;
  // Pages before the range that a fault in it mapped again would otherwise stay.
  const std::int64_t around = std::min(offset, kFaultAround);
  advise(offset - around, std::min(bytes, size() - offset) + around, MADV_DONTNEED);
}

void MappedFile::advise(std::int64_t offset, std::int64_t bytes, int advice) const {
  if (bytes <= 0 || offset < 0 || offset >= size()) return;
  // Rounded outwards to whole pages: ranges that share a page would otherwise leave it in memory.
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  const std::int64_t begin = offset / page * page;
  const std::int64_t end = offset + std::min(bytes, size() - offset);
  ::madvise(static_cast<char*>(data_) + begin, static_cast<std::size_t>(end - begin), advice);
}

}  // namespace reshard
