// SPDX-License-Identifier: Apache-2.0
#include "reshard/cuda/emulated_pages_testutil.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <utility>

#include "reshard/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

namespace reshard::cuda {
namespace {

constexpr std::size_t kPage = 4096;

std::uint64_t next_id() {
  static std::uint64_t last = 0;
  return ++last;
}

/// Address ranges of views that ended, by size. They stay reserved, so that other threads get none
/// of them, and a view of the same size gets the last one back: as on a GPU, whose addresses
/// nothing else takes. The map lives as long as the process, because views may end at its exit.
std::byte*& ended_view(std::size_t bytes) {
  static auto& ranges = *new std::map<std::size_t, std::byte*>;
  return ranges[bytes];
}

}  // namespace

ino_t inode_of(int file) {
  struct stat found{};
  return ::fstat(file, &found) == 0 ? found.st_ino : 0;
}

std::shared_ptr<PageFile> make_page_file(std::size_t bytes, int device) {
  FileDescriptor file(::memfd_create("emulated GPU", MFD_CLOEXEC));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return nullptr;
  return std::make_shared<PageFile>(PageFile{std::move(file), bytes, device, 0, next_id()});
}

PageTicket ticket_of(const PageFile& pages, std::size_t offset, std::size_t bytes) {
  PageTicket out;
  out.process = ::getpid();
  out.file = pages.file.get();
  out.device = pages.device;
  out.inode = inode_of(out.file);
  out.offset = offset;
  out.bytes = bytes;
  return out;
}

std::shared_ptr<PageFile> open_ticket(const PageTicket& ticket) {
  if (ticket.magic != PageTicket().magic) return nullptr;
  const std::string path = fmt::format("/proc/{}/fd/{}", ticket.process, ticket.file);
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat found{};
  if (!file || ::fstat(file.get(), &found) != 0 || found.st_ino != ticket.inode) return nullptr;
  const auto bytes = static_cast<std::size_t>(found.st_size);
  return std::make_shared<PageFile>(
      PageFile{std::move(file), bytes, ticket.device, 0, next_id(), false});
}

PageView::PageView(const PageFile& pages, std::size_t offset, std::size_t bytes)
    : whole_(pages.bytes + 2 * kPage) {
  base_ = std::exchange(ended_view(whole_), nullptr);
  if (base_ == nullptr) {
    void* const made = ::mmap(nullptr, whole_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RESHARD_CHECK(made != MAP_FAILED);
    base_ = static_cast<std::byte*>(made);
  }
  data_ = base_ + kPage + offset;
  RESHARD_CHECK(::mmap(base_ + kPage, pages.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                       pages.file.get(), 0) != MAP_FAILED);
  ASAN_POISON_MEMORY_REGION(base_ + kPage, offset);
  ASAN_POISON_MEMORY_REGION(data_ + bytes, pages.bytes - offset - bytes);
}

PageView::~PageView() {
  ASAN_UNPOISON_MEMORY_REGION(base_, whole_);
  std::byte*& ended = ended_view(whole_);
  if (ended != nullptr) ::munmap(ended, whole_);
  ended = base_;
  RESHARD_CHECK(::mmap(base_, whole_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
                MAP_FAILED);
}

}  // namespace reshard::cuda
