// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/delta/code_store.h"

#include <unistd.h>

#include <cerrno>

#include "reshard/io/files/disk.h"
#include "reshard/io/files/posix_error.h"

namespace reshard {

Result<DeltaCodeStore> DeltaCodeStore::create(const std::string& path) {
  std::string beside = path + ".codes";
  ::unlink(beside.c_str());  // of a writer that was killed before it came to the next unlink()
  auto fd = RESHARD_TRY(files::create_file(beside, 0));
  ::unlink(beside.c_str());
  return DeltaCodeStore(std::move(beside), std::move(fd));
}

Result<Index> DeltaCodeStore::append(std::span<const std::byte> code) {
  const Index at = size_.fetch_add(static_cast<Index>(code.size()));
  RESHARD_TRY(files::write_all(fd_.get(), path_, code, at));
  return at;
}

Result<> DeltaCodeStore::read(Index offset, std::span<std::byte> code) const {
  while (!code.empty()) {
    const auto n = ::pread(fd_.get(), code.data(), code.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return files::posix_fail(path_, "read the file", n == 0 ? EIO : errno);
    code = code.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
  return {};
}

}  // namespace reshard
