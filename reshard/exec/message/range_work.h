// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "reshard/index/interval.h"
#include "reshard/transform/copy.h"

namespace reshard {

/// Bytes of a local tensor that belong to an item of work. An item may have several ranges, and
/// ranges may overlap.
struct ItemRange {
  const std::byte* begin = nullptr;
  Index bytes = 0;
  std::size_t item = 0;
};

/// Work that goes with ranges of local tensors: how a conversion is made one with packing and
/// unpacking, while the bytes are in a cache and others are on their way. Borrowed by a RankRefit
/// (RankRefitHooks::before, after). Ranges and sizes stay as they are while it is lent.
class RangeWork {
 public:
  virtual ~RangeWork() = default;
  virtual std::size_t size() const = 0;  ///< items.
  virtual std::span<const ItemRange> ranges() const = 0;
  /// Does these items, each at most once a refit whatever how often it is named; in the thread that
  /// runs the refit. Must not throw.
  virtual void run(std::span<const std::size_t> items) = 0;
};

/// Bytes of an item that a copy writes.
struct ItemBytes {
  std::size_t item = 0;
  Index bytes = 0;
};

/// Lists of items, one for each group of copies.
class ItemLists {
 public:
  /// Ends a list.
  void close() { first_.push_back(all_.size()); }
  std::span<const ItemBytes> operator[](std::size_t list) const {
    return std::span(all_).subspan(first_[list], first_[list + 1] - first_[list]);
  }
  std::vector<ItemBytes>& all() { return all_; }

 private:
  std::vector<ItemBytes> all_;
  std::vector<std::size_t> first_{0};
};

/// Finds the items that copies touch.
class ItemFinder {
 public:
  explicit ItemFinder(const RangeWork& work);

  /// Appends the items that what is read from `bytes` at `first` on may belong to; bytes are 0.
  void find_read(const std::byte* first, Index bytes, std::vector<ItemBytes>& out) const;
  void find_read(const CopyTask& task, std::vector<ItemBytes>& out) const;
  /// Appends what is written of each item, exactly. @pre the destination is a box of a row-major
  /// tensor
  void find_written(const std::byte* first, Index bytes, std::vector<ItemBytes>& out) const;
  void find_written(const CopyTask& task, std::vector<ItemBytes>& out) const;

 private:
  template <class F>
  void for_each_range(const std::byte* first, const std::byte* last, F&& f) const;

  std::vector<ItemRange> ranges_;  ///< by address.
  Index longest_ = 0;
};

}  // namespace reshard
