// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace reshard {

/// A base for small objects that come and go by the thousand: the memory of a few that a thread
/// destroyed is kept for the next that it makes. T is the class that derives from it, which nothing
/// derives from.
template <class T>
class KeepsMemory {
 public:
  static void* operator new(std::size_t bytes) {
    Kept& kept = kept_here();
    if (kept.size > 0 && bytes == sizeof(T)) return kept.memory[--kept.size];
    return ::operator new(bytes);
  }
  static void operator delete(void* memory, std::size_t bytes) {
    Kept& kept = kept_here();
    if (kept.size < kMost && !kept.over && bytes == sizeof(T)) {
      kept.memory[kept.size++] = memory;
    } else {
      ::operator delete(memory);
    }
  }

 private:
  static constexpr std::size_t kMost = 64;
  struct Kept {
    std::array<void*, kMost> memory{};
    std::size_t size = 0;
    bool over = false;  ///< the thread ends: nothing is kept any more.
    ~Kept() {
      over = true;
      while (size > 0) ::operator delete(memory[--size]);
    }
  };
  static Kept& kept_here() {
    static thread_local Kept kept;
    return kept;
  }
};

}  // namespace reshard
