// SPDX-License-Identifier: Apache-2.0
#include "reshard/memory/host_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "reshard/memory/shared_arena.h"

namespace reshard {
namespace {

constexpr Index kPage = 4096;
constexpr Index kMaxBytes = Index{1} << 56;
constexpr std::size_t kSmallAlignment = 64;

tl::unexpected<Error> no_memory(Index bytes) {
  return fail(Code::io, fmt::format("no memory for a buffer of {} bytes", bytes));
}

Index round_up(Index value, Index unit) { return (value + unit - 1) / unit * unit; }

/// `mapped` bytes at a multiple of kHugePage, or null. @pre mapped is a multiple of kHugePage
std::byte* map_aligned(Index mapped) {
  const Index reserved = mapped + kHugePage;
  void* p = mmap(nullptr, static_cast<std::size_t>(reserved), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(p);
  const Index misplaced = static_cast<Index>(reinterpret_cast<std::uintptr_t>(p) % kHugePage);
  const Index head = misplaced == 0 ? 0 : kHugePage - misplaced;
  if (head > 0) munmap(begin, static_cast<std::size_t>(head));
  munmap(begin + head + mapped, static_cast<std::size_t>(kHugePage - head));
  madvise(begin + head, static_cast<std::size_t>(mapped), MADV_HUGEPAGE);
  return begin + head;
}

void touch(std::byte* data, Index begin, Index end) {
  for (Index at = begin; at < end; at += kPage)
    const_cast<volatile std::byte&>(data[at]) = std::byte{0};
}

void prefault(std::byte* data, Index size, int threads) {
  const Index part = round_up((size + threads - 1) / threads, kHugePage);
  std::vector<std::jthread> workers;
  for (Index begin = part; begin < size; begin += part) {
    const Index end = std::min(size, begin + part);
    try {
      workers.emplace_back(touch, data, begin, end);
    } catch (const std::system_error&) {  // No thread available: this one does the work.
      touch(data, begin, end);
    }
  }
  touch(data, 0, std::min(size, part));
}

}  // namespace

Result<HostBuffer> HostBuffer::allocate(Index bytes, Options options) {
  if (bytes < 0 || bytes > kMaxBytes) {
    return fail(Code::invalid_argument,
                fmt::format("a buffer of {} bytes: must be 0 to 2^56", bytes));
  }
  if (options.prefault_threads < 0 || options.prefault_threads > 4096) {
    return fail(Code::invalid_argument,
                fmt::format("{} threads to prefault a buffer: must be 0 to 4096",
                            options.prefault_threads));
  }
  if (bytes == 0) return HostBuffer{};
  if (options.shared) {
    std::byte* const data = RESHARD_TRY(shared_arena::allocate(static_cast<std::size_t>(bytes)));
    HostBuffer buffer(data, bytes, true);
    if (options.prefault_threads > 0 && bytes >= kHugePage)
      prefault(data, bytes, options.prefault_threads);
    return buffer;
  }
  if (bytes < kHugePage) {
    const auto rounded = static_cast<std::size_t>(round_up(bytes, Index{kSmallAlignment}));
    void* p = std::aligned_alloc(kSmallAlignment, rounded);
    if (p == nullptr) return no_memory(bytes);
    std::memset(p, 0, rounded);
    return HostBuffer(static_cast<std::byte*>(p), bytes, false);
  }
  std::byte* const data = map_aligned(round_up(bytes, kHugePage));
  if (data == nullptr) return no_memory(bytes);
  if (options.prefault_threads > 0) prefault(data, bytes, options.prefault_threads);
  return HostBuffer(data, bytes, false);
}

HostBuffer::~HostBuffer() {
  if (shared_ && size_ > 0) {
    shared_arena::free(data_, static_cast<std::size_t>(size_));
  } else if (size_ >= kHugePage) {
    munmap(data_, static_cast<std::size_t>(round_up(size_, kHugePage)));
  } else {
    std::free(data_);
  }
}

}  // namespace reshard
