// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "reshard/index/interval.h"
#include "reshard/transform/copy.h"

namespace reshard {

/// Bytes of a local tensor that belong to an item of work. An item may have several ranges; ranges
/// may overlap.
struct ItemRange {
  const std::byte* begin = nullptr;
  Index bytes = 0;
  std::size_t item = 0;
};

/// Work on ranges of local tensors. This is how a conversion becomes part of packing and unpacking,
/// while the bytes are in a cache and other messages are in flight. A RankRefit borrows it
/// (RankRefitHooks::before, after); ranges and sizes must not change meanwhile.
class RangeWork {
 public:
  virtual ~RangeWork() = default;
  virtual std::size_t size() const = 0;  ///< number of items.
  virtual std::span<const ItemRange> ranges() const = 0;
  /// Runs these items, each at most once a refit however often it is passed. Called by the thread
  /// that runs the refit. Must not throw.
  virtual void run(std::span<const std::size_t> items) = 0;
};

namespace message {

/// Bytes of an item that a copy writes.
struct ItemBytes {
  std::size_t item = 0;
  Index bytes = 0;
};

/// Lists of items, one for each group of copies.
class ItemLists {
 public:
  /// Ends the current list.
  void close() { first_.push_back(all_.size()); }
  std::span<const ItemBytes> operator[](std::size_t list) const {
    return std::span(all_).subspan(first_[list], first_[list + 1] - first_[list]);
  }
  std::vector<ItemBytes>& all() { return all_; }

 private:
  std::vector<ItemBytes> all_;
  std::vector<std::size_t> first_{0};
};

/// Finds the items whose ranges copies touch.
class ItemFinder {
 public:
  explicit ItemFinder(const RangeWork& work);

  /// Appends the items whose ranges a read of [first, first + bytes) may touch, with 0 bytes each.
  void find_read(const std::byte* first, Index bytes, std::vector<ItemBytes>& out) const;
  void find_read(const CopyTask& task, std::vector<ItemBytes>& out) const;
  /// Appends the exact number of bytes written of each item. @pre the destination is a box of a
  /// row-major tensor
  void find_written(const std::byte* first, Index bytes, std::vector<ItemBytes>& out) const;
  void find_written(const CopyTask& task, std::vector<ItemBytes>& out) const;

 private:
  template <class F>
  void for_each_range(const std::byte* first, const std::byte* last, F&& f) const;

  std::vector<ItemRange> ranges_;  ///< by address.
  Index longest_ = 0;
};

}  // namespace message

}  // namespace reshard
