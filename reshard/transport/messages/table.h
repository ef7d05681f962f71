// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/transport/transport.h"

namespace reshard::messages {

/// Maps (peer, message id) to the receive or unexpected message of a receiving rank. A hash table
/// with open addressing and linear probing, at most half full: constant time, and no allocation per
/// entry.
class MessageTable {
 public:
  enum class Kind : std::uint8_t { none, recv, unexpected };
  struct Entry {
    MessageId id{};
    Rank peer{};
    std::uint32_t index = 0;  ///< in the slab of its kind.
    Kind kind = Kind::none;
  };

  /// Null if there is none. Valid until the next insert or erase.
  Entry* find(Rank peer, MessageId id) {
    if (size_ == 0) return nullptr;
    Entry& entry = entries_[slot(peer, id)];
    return entry.kind == Kind::none ? nullptr : &entry;
  }

  /// @pre find(entry.peer, entry.id) == nullptr
  void insert(Entry entry) {
    if (2 * (size_ + 1) > entries_.size()) grow();
    entries_[slot(entry.peer, entry.id)] = entry;
    ++size_;
  }

  void erase(Rank peer, MessageId id) {
    if (size_ == 0) return;
    std::size_t hole = slot(peer, id);
    if (entries_[hole].kind == Kind::none) return;
    // Entries after the hole move into it, unless that puts them before the slot they hash to.
    for (std::size_t i = next(hole); entries_[i].kind != Kind::none; i = next(i)) {
      const std::size_t home = hash(entries_[i].peer, entries_[i].id);
      if (((i - home) & mask()) < ((i - hole) & mask())) continue;
      entries_[hole] = entries_[i];
      hole = i;
    }
    entries_[hole].kind = Kind::none;
    --size_;
  }

  std::size_t size() const { return size_; }

 private:
  std::size_t mask() const { return entries_.size() - 1; }
  std::size_t next(std::size_t i) const { return (i + 1) & mask(); }
  std::size_t hash(Rank peer, MessageId id) const {
    return mix64(id.value() + (static_cast<std::uint64_t>(peer.value()) << 40)) & mask();
  }
  /// The slot that holds the entry, or where it would go.
  std::size_t slot(Rank peer, MessageId id) const {
    std::size_t i = hash(peer, id);
    while (entries_[i].kind != Kind::none && (entries_[i].peer != peer || entries_[i].id != id))
      i = next(i);
    return i;
  }
  void grow() {
    std::vector<Entry> old(entries_.empty() ? 64 : 2 * entries_.size());
    std::swap(old, entries_);
    for (const Entry& entry : old)
      if (entry.kind != Kind::none) entries_[slot(entry.peer, entry.id)] = entry;
  }

  std::vector<Entry> entries_;  ///< empty, or a power of two in size.
  std::size_t size_ = 0;
};

}  // namespace reshard::messages
