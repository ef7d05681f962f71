// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace reshard {

/// A base class (CRTP) for small objects that are created and destroyed often: each thread keeps
/// the memory of a few destroyed objects in a free list and reuses it. No class may derive from T.
template <class T>
class Pooled {
 public:
  static void* operator new(std::size_t bytes) {
    FreeList& list = free_list();
    if (list.size > 0 && bytes == sizeof(T)) return list.memory[--list.size];
    return ::operator new(bytes);
  }
  static void operator delete(void* memory, std::size_t bytes) {
    FreeList& list = free_list();
    if (list.size < kMaxKept && !list.over && bytes == sizeof(T)) {
      list.memory[list.size++] = memory;
    } else {
      ::operator delete(memory);
    }
  }

 private:
  static constexpr std::size_t kMaxKept = 64;
  struct FreeList {
    std::array<void*, kMaxKept> memory{};
    std::size_t size = 0;
    bool over = false;  ///< the thread is ending, so nothing is kept any more.
    ~FreeList() {
      over = true;
      while (size > 0) ::operator delete(memory[--size]);
    }
  };
  static FreeList& free_list() {
    static thread_local FreeList list;
    return list;
  }
};

}  // namespace reshard
