// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace reshard {

/// A queue in one array that grows but never shrinks, so it stops allocating once it has reached
/// its maximal length. T is default-constructible.
template <class T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  /// @pre !empty()
  T& front() { return (*this)[0]; }

  void push_back(T item) {
    if (size_ == items_.size()) grow();
    (*this)[size_++] = std::move(item);
  }
  /// @pre !empty()
  void pop_front() {
    front() = T{};
    first_ = (first_ + 1) & (items_.size() - 1);
    --size_;
  }
  void clear() {
    while (!empty()) pop_front();
  }

  /// Removes the items for which drop(item) is true, keeps the order of the others, and returns the
  /// number of removed ones.
  template <class Predicate>
  std::size_t erase_if(Predicate drop) {
    const std::size_t before = size_;
    for (std::size_t i = 0; i < before; ++i) {
      T item = std::move(front());
      pop_front();
      if (!drop(std::as_const(item))) push_back(std::move(item));
    }
    return before - size_;
  }

 private:
  /// The item at position `i`.
  T& operator[](std::size_t i) { return items_[(first_ + i) & (items_.size() - 1)]; }

  void grow() {
    std::vector<T> more(items_.empty() ? 16 : 2 * items_.size());
    for (std::size_t i = 0; i < size_; ++i) more[i] = std::move((*this)[i]);
    items_ = std::move(more);
    first_ = 0;
  }

  std::vector<T> items_;  ///< empty, or a power of two in size.
  std::size_t first_ = 0, size_ = 0;
};

}  // namespace reshard
