// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace reshard::messages {

/// Items in one array with a free list. A token carries its slot's generation, so that it never
/// finds an item that reuses the slot: peers send tokens back, and may be late or lie.
template <class T>
class Slab {
 public:
  using Token = std::uint64_t;

  /// Invalidates pointers to items.
  Token add(T item) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    slots_[index].item = std::move(item);
    slots_[index].live = true;
    return token(index);
  }

  void remove(std::uint32_t index) {
    slots_[index].item = T{};
    slots_[index].live = false;
    ++slots_[index].generation;
    free_.push_back(index);
  }

  /// Null if the item was removed or the token was never issued.
  T* find(Token token) {
    if (!issued(token)) return nullptr;
    Slot& slot = slots_[index(token)];
    return slot.live && slot.generation == token >> 32 ? &slot.item : nullptr;
  }

  /// True if add() has returned this token.
  bool issued(Token token) const {
    if ((token & 0xffffffff) >= slots_.size()) return false;
    const Slot& slot = slots_[index(token)];
    return token >> 32 < slot.generation || (token >> 32 == slot.generation && slot.live);
  }

  T& operator[](std::uint32_t index) { return slots_[index].item; }
  Token token(std::uint32_t index) const {
    return static_cast<Token>(slots_[index].generation) << 32 | index;
  }
  static std::uint32_t index(Token token) { return static_cast<std::uint32_t>(token); }

  /// Calls f(index, item) for each live item.
  template <class F>
  void for_each(F f) {
    for (std::uint32_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].live) f(i, slots_[i].item);
  }
  std::size_t size() const { return slots_.size() - free_.size(); }

 private:
  struct Slot {
    T item{};
    std::uint32_t generation = 0;
    bool live = false;
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace reshard::messages
