// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "reshard/base/check.h"
#include "reshard/transport/testing/message_memory_testutil.h"

namespace reshard {

/// A stand-in for a GPU's memory: pages that are mapped twice. At the address that a transport gets
/// every access faults, as host code must not touch the memory; at the other address, which only
/// the stand-in for a library and the tests use, are its bytes. Both end when it is freed.
class UntouchableMemory final : public MessageMemory {
 public:
  static const std::shared_ptr<UntouchableMemory>& instance() {
    static const auto memory = std::make_shared<UntouchableMemory>();
    return memory;
  }

  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    const std::size_t size = bytes == 0 ? 1 : bytes;
    const int file = memfd_create("untouchable", MFD_CLOEXEC);
    RESHARD_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0);
    std::byte* const outer = map(file, size, PROT_NONE);
    std::byte* const inner = map(file, size, PROT_READ | PROT_WRITE);
    ::close(file);
    const std::lock_guard lock(mutex_);
    blocks_[address(outer)] = {size, inner};
    return {outer, [this](const std::byte* at) { free(at); }};
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(inside(to), from.data(), from.size());
  }
  void read(std::span<std::byte> to, const std::byte* from) override {
    if (!to.empty()) std::memcpy(to.data(), inside(from), to.size());
  }

  bool contains(const std::byte* at) const {
    const std::lock_guard lock(mutex_);
    return find(at) != blocks_.end();
  }
  /// The inner address of a byte of such memory; `at` itself for other memory.
  std::byte* inside(const std::byte* at) const {
    const std::lock_guard lock(mutex_);
    const auto found = find(at);
    if (found == blocks_.end()) return const_cast<std::byte*>(at);
    return found->second.inner + (address(at) - found->first);
  }

 private:
  struct Mapped {
    std::size_t bytes;
    std::byte* inner;
  };
  using Blocks = std::map<std::uintptr_t, Mapped>;

  static std::uintptr_t address(const std::byte* at) {
    return reinterpret_cast<std::uintptr_t>(at);
  }
  static std::byte* map(int file, std::size_t bytes, int protection) {
    void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
    RESHARD_CHECK(at != MAP_FAILED);
    return static_cast<std::byte*>(at);
  }
  Blocks::const_iterator find(const std::byte* at) const {
    auto after = blocks_.upper_bound(address(at));
    if (after == blocks_.begin()) return blocks_.end();
    const auto block = std::prev(after);
    return address(at) - block->first < block->second.bytes ? block : blocks_.end();
  }
  void free(const std::byte* at) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(address(at));
    ::munmap(const_cast<std::byte*>(at), block->second.bytes);
    ::munmap(block->second.inner, block->second.bytes);
    blocks_.erase(block);
  }

  mutable std::mutex mutex_;
  Blocks blocks_;  ///< by the address that transports get.
};

}  // namespace reshard
