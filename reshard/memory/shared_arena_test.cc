// SPDX-License-Identifier: Apache-2.0
// Protects: shared memory is one file that others map, freed memory returns to the system, and a
// child process does not disturb its parent's.
#include "reshard/memory/shared_arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/memory/host_buffer.h"

namespace reshard {
namespace {

/// Bytes of memory that the arena's file has.
std::size_t resident() {
  struct stat s{};
  EXPECT_EQ(fstat(*shared_arena::file(), &s), 0);
  return static_cast<std::size_t>(s.st_blocks) * 512;
}

TEST(SharedArena, a_second_mapping_shows_the_same_bytes) {
  for (const Index size : {Index{100}, kHugePage, 2 * kHugePage + 5}) {
    auto buffer = *HostBuffer::allocate(size, {.prefault_threads = 1, .shared = true});
    const auto place = shared_arena::find(buffer.bytes());
    ASSERT_TRUE(place);
    const std::size_t page = place->offset / 4096 * 4096;
    void* other = mmap(nullptr, place->offset - page + static_cast<std::size_t>(size), PROT_READ,
                       MAP_SHARED, place->fd, static_cast<off_t>(page));
    ASSERT_NE(other, MAP_FAILED);
    std::ranges::fill(buffer.bytes(), std::byte{42});
    const std::byte* seen = static_cast<std::byte*>(other) + (place->offset - page);
    EXPECT_TRUE(std::equal(buffer.bytes().begin(), buffer.bytes().end(), seen));
    munmap(other, place->offset - page + static_cast<std::size_t>(size));
  }
}

TEST(SharedArena, finds_only_its_own_memory) {
  auto shared = *HostBuffer::allocate(kHugePage, {.shared = true});
  auto other = *HostBuffer::allocate(kHugePage);
  EXPECT_FALSE(shared_arena::find(other.bytes()));
  EXPECT_FALSE(shared_arena::find({}));
  const auto all = shared_arena::find(shared.bytes());
  const auto rest = shared_arena::find(std::as_const(shared).bytes().subspan(100));
  ASSERT_TRUE(all && rest);
  EXPECT_EQ(rest->offset, all->offset + 100);
}

TEST(SharedArena, freed_memory_returns_to_the_system_and_is_zero_again) {
  const std::size_t before = resident();
  std::uint64_t seed = 1;
  for (int round = 0; round < 50; ++round) {
    std::deque<HostBuffer> buffers;
    for (int i = 0; i < 20; ++i) {
      seed = mix64(seed);
      const auto size = static_cast<Index>(seed % (i % 4 == 0 ? 5'000'000 : 50'000) + 1);
      buffers.push_back(*HostBuffer::allocate(size, {.shared = true}));
      EXPECT_TRUE(std::ranges::all_of(buffers.back().bytes(),
                                      [](std::byte b) { return b == std::byte{0}; }));
      std::ranges::fill(buffers.back().bytes(), std::byte{1});
      if (seed % 3 == 0)
        buffers.erase(buffers.begin() + static_cast<std::ptrdiff_t>(seed % buffers.size()));
    }
  }
  EXPECT_EQ(resident(), before);
}

TEST(SharedArena, threads_get_memory_that_does_not_overlap) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      const auto mark = std::byte{static_cast<unsigned char>(t + 1)};
      std::deque<HostBuffer> buffers;
      for (Index i = 0; i < 200; ++i) {
        buffers.push_back(*HostBuffer::allocate(i * 997 + 1, {.shared = true}));
        std::ranges::fill(buffers.back().bytes(), mark);
        if (i % 3 == 0) buffers.pop_front();
      }
      for (HostBuffer& buffer : buffers)
        EXPECT_TRUE(std::ranges::all_of(buffer.bytes(), [&](std::byte b) { return b == mark; }));
    });
  }
}

TEST(SharedArena, a_child_has_an_arena_of_its_own) {
  auto buffer = *HostBuffer::allocate(kHugePage, {.shared = true});
  std::ranges::fill(buffer.bytes(), std::byte{5});
  const pid_t child = fork();
  if (child == 0) {
    bool good = !shared_arena::find(buffer.bytes());
    {
      const HostBuffer inherited = std::move(buffer);
    }
    auto own = HostBuffer::allocate(kHugePage, {.shared = true});
    good = good && own && shared_arena::find(own->bytes());
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::ranges::all_of(buffer.bytes(), [](std::byte b) { return b == std::byte{5}; }));
}

TEST(SharedArena, what_cannot_be_had_is_an_error) {
  const auto huge = HostBuffer::allocate(Index{1} << 55, {.shared = true});
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, Code::io);
}

}  // namespace
}  // namespace reshard
