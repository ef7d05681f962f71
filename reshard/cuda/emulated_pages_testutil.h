// SPDX-License-Identifier: Apache-2.0
// Memory of the emulated GPU: files without a name, which other processes can open.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "reshard/base/file.h"

namespace reshard::cuda {

/// Physical memory: of this process, or of another that shares it.
struct PageFile {
  FileDescriptor file;
  std::size_t bytes = 0;
  int device = 0;
  int handle_types = 0;  ///< of HandleType: how it may be exported.
  std::uint64_t id = 0;  ///< unique in this process.
  bool is_own = true;    ///< false: imported.
};

/// Null if the system has no memory.
std::shared_ptr<PageFile> make_page_file(std::size_t bytes, int device);
ino_t inode_of(int file);

/// The data with which another process opens a file of this process.
struct PageTicket {
  std::uint32_t magic = 0x6d656d47;
  std::int32_t process = 0, file = 0, device = 0;
  std::uint64_t inode = 0, offset = 0, bytes = 0;  ///< of the allocation in the file.
};
/// The ticket of the bytes [offset, offset + bytes) of a file of this process.
PageTicket ticket_of(const PageFile& pages, std::size_t offset, std::size_t bytes);
/// Null if the process is gone, or the file is.
std::shared_ptr<PageFile> open_ticket(const PageTicket& ticket);

/// Addresses between two pages that nobody can touch. Made and destroyed under the machine's mutex.
class PageView {
 public:
  /// Maps a file. Under AddressSanitizer only [offset, offset + bytes) may be touched. @pre `pages`
  /// has whole pages
  PageView(const PageFile& pages, std::size_t offset, std::size_t bytes);
  ~PageView();
  PageView(const PageView&) = delete;
  PageView& operator=(const PageView&) = delete;
  std::byte* data() const { return data_; }  ///< of the byte at `offset`.

 private:
  std::byte *base_ = nullptr, *data_ = nullptr;
  std::size_t whole_ = 0;
};

}  // namespace reshard::cuda
