// SPDX-License-Identifier: Apache-2.0
#include "reshard/memory/address_range.h"

#include <fmt/format.h>
#include <sys/mman.h>

namespace reshard {
namespace {

constexpr Index kMaxReservedBytes = Index{1} << 46;

}  // namespace

Result<AddressRange> AddressRange::reserve(Index bytes) {
  if (bytes < 0 || bytes > kMaxReservedBytes)
    return fail(Code::invalid_argument, fmt::format("an address range of {} bytes: must be 0 to {}",
                                                    bytes, kMaxReservedBytes));
  if (bytes == 0) return AddressRange();
  void* const p = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return fail(Code::io, fmt::format("no address space for {} bytes", bytes));
  return AddressRange(static_cast<std::byte*>(p), bytes);
}

AddressRange::~AddressRange() {
  if (begin_ != nullptr) munmap(begin_, static_cast<std::size_t>(size_));
}

}  // namespace reshard
