// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "reshard/index/interval.h"

namespace reshard {

/// The maximal number of dimensions of a tensor.
inline constexpr int kMaxDims = 8;

/// A vector of at most kMaxDims indices: a shape, a point, or strides. Unused elements are zero.
class Dims {
 public:
  constexpr Dims() = default;
  constexpr Dims(std::initializer_list<Index> values)
      : Dims(std::span(values.begin(), values.size())) {}
  /// @pre values.size() <= kMaxDims
  explicit constexpr Dims(std::span<const Index> values) : size_(static_cast<int>(values.size())) {
    assert(values.size() <= kMaxDims);
    for (std::size_t i = 0; i < values.size(); ++i) at_[i] = values[i];
  }
  static constexpr Dims filled(int size, Index value) {
    Dims d;
    d.size_ = size;
    for (int i = 0; i < size; ++i) d[i] = value;
    return d;
  }
  constexpr int size() const { return size_; }
  constexpr Index operator[](int i) const { return at_[static_cast<std::size_t>(i)]; }
  constexpr Index& operator[](int i) { return at_[static_cast<std::size_t>(i)]; }
  /// @pre size() < kMaxDims
  constexpr void push_back(Index value) { at_[static_cast<std::size_t>(size_++)] = value; }
  constexpr const Index* begin() const { return at_.data(); }
  constexpr const Index* end() const { return at_.data() + size_; }
  friend constexpr bool operator==(const Dims&, const Dims&) = default;

 private:
  std::array<Index, kMaxDims> at_{};
  int size_ = 0;
};

/// The product of the dimensions; 1 for a scalar. @pre it does not overflow (checked when shapes
/// are read)
constexpr Index volume(const Dims& shape) {
  Index v = 1;
  for (Index d : shape) v *= d;
  return v;
}

/// The adjacent dimensions of an index space that are one dimension of the stored tensor: bit k for
/// dimensions k and k + 1. Merging does not change row-major bytes.
struct MergedDims {
  std::uint8_t bits = 0;
  friend constexpr bool operator==(MergedDims, MergedDims) = default;
};

/// The shape after merging those dimensions.
Dims merged_shape(const Dims& shape, MergedDims merged);

/// A hyper-rectangle of indices: the product of one interval per dimension.
///
/// Invariant: if one dimension is empty, all are [0, 0), so that `==` is set equality of boxes with
/// equal rank. A box of rank 0 is the single point of a scalar and is not empty.
class Box {
 public:
  constexpr Box() = default;
  constexpr Box(std::initializer_list<Interval> dims) : Box(std::span(dims.begin(), dims.size())) {}
  /// @pre dims.size() <= kMaxDims
  explicit constexpr Box(std::span<const Interval> dims) : rank_(static_cast<int>(dims.size())) {
    assert(dims.size() <= kMaxDims);
    bool empty = false;
    for (const Interval& d : dims) empty |= d.empty();
    for (std::size_t i = 0; i < dims.size() && !empty; ++i) at_[i] = dims[i];
  }
  /// All indices of a tensor with this shape.
  static constexpr Box whole(const Dims& shape) {
    std::array<Interval, kMaxDims> dims;
    for (int i = 0; i < shape.size(); ++i)
      dims[static_cast<std::size_t>(i)] = Interval{0, shape[i]};
    return Box(std::span<const Interval>(dims.data(), static_cast<std::size_t>(shape.size())));
  }
  constexpr int rank() const { return rank_; }
  constexpr Interval operator[](int i) const { return at_[static_cast<std::size_t>(i)]; }
  constexpr bool empty() const { return rank_ > 0 && at_[0].empty(); }
  constexpr Index volume() const {
    Index v = 1;
    for (int i = 0; i < rank_; ++i) v *= (*this)[i].size();
    return v;
  }
  constexpr Dims shape() const {
    Dims s;
    for (int i = 0; i < rank_; ++i) s.push_back((*this)[i].size());
    return s;
  }
  constexpr Dims origin() const {
    Dims s;
    for (int i = 0; i < rank_; ++i) s.push_back((*this)[i].begin());
    return s;
  }
  /// The same box with another interval in dimension i. @pre 0 <= i < rank()
  constexpr Box with(int i, Interval interval) const {
    auto dims = at_;
    dims[static_cast<std::size_t>(i)] = interval;
    return Box(std::span<const Interval>(dims.data(), static_cast<std::size_t>(rank_)));
  }
  friend constexpr bool operator==(const Box&, const Box&) = default;

 private:
  std::array<Interval, kMaxDims> at_{};
  int rank_ = 0;
};

/// @pre a.rank() == b.rank()  @post a point is in the result <=> it is in both
Box intersect(const Box& a, const Box& b);
/// @pre a.rank() == b.rank()  @post true <=> every point of `b` is in `a`
bool contains(const Box& a, const Box& b);
/// @pre point.size() == a.rank()
bool contains(const Box& a, const Dims& point);
/// @pre by.size() == a.rank()  @post p is in `a` <=> p + by is in the result
Box shift(const Box& a, const Dims& by);
/// A total order (rank, then dimensions from the first, begin before end) for deterministic
/// sorting.
bool before(const Box& a, const Box& b);

/// "[0,128)x[0,512)"; "[]" for a scalar.
std::string to_string(const Box& box);
/// "[2, 3, 4]"
std::string to_string(const Dims& dims);

}  // namespace reshard
