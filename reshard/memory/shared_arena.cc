// SPDX-License-Identifier: Apache-2.0
// One reserved address range corresponds to the whole file: address = base + offset. Ranges of
// whole huge pages are mapped and unmapped in it. Holes are punched into the file for freed ranges,
// which returns the memory to the system and makes it zero for the next allocation. Buffers smaller
// than a huge page share huge-page blocks; a block is freed with the last buffer in it.
#include "reshard/memory/shared_arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "reshard/base/file.h"

namespace reshard::shared_arena {
namespace {

constexpr std::size_t kBlock = std::size_t{2} << 20;
constexpr std::size_t kSmallAlignment = 64;
/// Bytes of address space to reserve: more than the memory of any host, or less if the process is
/// limited.
constexpr std::size_t kMaxReserved = std::size_t{1} << 42, kLeastReserved = std::size_t{1} << 30;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

tl::unexpected<Error> refused(std::string_view what) {
  return fail(Code::io, fmt::format("no shared memory: {}: {}", what, std::strerror(errno)));
}

struct Arena {
  FileDescriptor file;
  std::byte* base = nullptr;
  std::size_t reserved = 0;                       ///< bytes from base.
  std::size_t size = 0;                           ///< of the file.
  std::map<std::size_t, std::size_t> unused;      ///< offset -> bytes, within size.
  std::map<std::size_t, std::size_t> small_live;  ///< block's offset -> buffers in it.
  std::size_t block = 0, block_used = kBlock;     ///< the block that small buffers come from.
};

std::mutex g_mutex;
std::atomic<Arena*> g_arena{nullptr};

/// Runs in the child after fork(): it starts without an arena, because the inherited one is the
/// parent's.
void forget() {
  g_arena.store(nullptr);
  g_mutex.unlock();
}

Result<std::byte*> reserve(std::size_t& bytes) {
  for (bytes = kMaxReserved; bytes >= kLeastReserved; bytes /= 2) {
    void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) continue;
    madvise(p, bytes, MADV_DONTDUMP);
    const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(p) % kBlock;
    const std::size_t head = misplaced == 0 ? 0 : kBlock - misplaced;
    bytes -= kBlock;
    return static_cast<std::byte*>(p) + head;
  }
  return refused("no address space");
}

/// @pre g_mutex is held
Result<Arena*> arena() {
  if (Arena* have = g_arena.load()) return have;
  static const int at_fork =
      pthread_atfork([] { g_mutex.lock(); }, [] { g_mutex.unlock(); }, forget);
  if (at_fork != 0) return refused("no fork handler");
  FileDescriptor file(memfd_create("reshard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return refused("memfd_create");
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) return refused("sealing");
  auto made = std::make_unique<Arena>();
  made->base = RESHARD_TRY(reserve(made->reserved));
  made->file = std::move(file);
  g_arena.store(made.get());
  return made.release();  // Never freed: its memory may be in use until the process ends.
}

/// Takes an unused range of the file, which grows if there is none, and returns its offset.
Result<std::size_t> take(Arena& a, std::size_t bytes) {
  for (auto it = a.unused.begin(); it != a.unused.end(); ++it) {
    const auto [offset, size] = *it;
    if (size < bytes) continue;
    a.unused.erase(it);
    if (size > bytes) a.unused.emplace(offset + bytes, size - bytes);
    return offset;
  }
  if (bytes > a.reserved - a.size) {
    errno = ENOMEM;
    return refused(fmt::format("{} bytes beside {}", bytes, a.size));
  }
  if (ftruncate(a.file.get(), static_cast<off_t>(a.size + bytes)) != 0)
    return refused(fmt::format("growing to {} bytes", a.size + bytes));
  const std::size_t offset = a.size;
  a.size += bytes;
  return offset;
}

/// Returns a range, merged with adjacent unused ones.
void put_back(Arena& a, std::size_t offset, std::size_t bytes) {
  auto next = a.unused.lower_bound(offset);
  if (next != a.unused.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      a.unused.erase(before);
    }
  }
  if (next != a.unused.end() && offset + bytes == next->first) {
    bytes += next->second;
    a.unused.erase(next);
  }
  a.unused.emplace(offset, bytes);
}

Result<std::size_t> map_range(Arena& a, std::size_t bytes) {
  const std::size_t offset = RESHARD_TRY(take(a, bytes));
  void* p = mmap(a.base + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 a.file.get(), static_cast<off_t>(offset));
  if (p == MAP_FAILED) {
    auto error = refused(fmt::format("mapping {} bytes", bytes));
    put_back(a, offset, bytes);
    return error;
  }
  madvise(p, bytes, MADV_HUGEPAGE);
  return offset;
}

void unmap_range(Arena& a, std::size_t offset, std::size_t bytes) {
  mmap(a.base + offset, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
       -1, 0);
  fallocate(a.file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
  put_back(a, offset, bytes);
}

}  // namespace

Result<std::byte*> allocate(std::size_t bytes) {
  const std::lock_guard lock(g_mutex);
  Arena& a = *RESHARD_TRY(arena());
  if (bytes > kMaxReserved) {
    errno = ENOMEM;
    return refused(fmt::format("{} bytes", bytes));
  }
  if (bytes >= kBlock) return a.base + RESHARD_TRY(map_range(a, round_up(bytes, kBlock)));
  const std::size_t rounded = round_up(bytes, kSmallAlignment);
  if (rounded > kBlock - a.block_used) {
    a.block = RESHARD_TRY(map_range(a, kBlock));
    a.block_used = 0;
  }
  std::byte* const data = a.base + a.block + a.block_used;
  a.block_used += rounded;
  ++a.small_live[a.block];
  return data;
}

void free(std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(g_mutex);
  Arena* a = g_arena.load();
  if (a == nullptr || data < a->base || data >= a->base + a->reserved)
    return;  // Inherited from the parent.
  const auto offset = static_cast<std::size_t>(data - a->base);
  if (bytes >= kBlock) {
    unmap_range(*a, offset, round_up(bytes, kBlock));
    return;
  }
  const std::size_t block = offset / kBlock * kBlock;
  if (--a->small_live[block] > 0) return;
  a->small_live.erase(block);
  if (block == a->block) a->block_used = kBlock;
  unmap_range(*a, block, kBlock);
}

Result<int> file() {
  const std::lock_guard lock(g_mutex);
  return RESHARD_TRY(arena())->file.get();
}

std::optional<SharedLocation> find(std::span<const std::byte> memory) {
  const Arena* a = g_arena.load(std::memory_order_acquire);
  if (a == nullptr) return std::nullopt;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const auto base = reinterpret_cast<std::uintptr_t>(a->base);
  if (begin < base || begin - base > a->reserved || memory.size() > a->reserved - (begin - base))
    return std::nullopt;
  return SharedLocation{a->file.get(), begin - base};
}

}  // namespace reshard::shared_arena
