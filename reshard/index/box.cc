// SPDX-License-Identifier: Apache-2.0
#include "reshard/index/box.h"

#include <tuple>

namespace reshard {

std::string to_string(Interval a) {
  return "[" + std::to_string(a.begin()) + "," + std::to_string(a.end()) + ")";
}

Dims merged_shape(const Dims& shape, MergedDims merged) {
  Dims out;
  for (int i = 0; i < shape.size(); ++i) {
    const bool joins = i > 0 && (merged.bits >> (i - 1) & 1) != 0;
    if (!joins) {
      out.push_back(shape[i]);
    } else {
      out[out.size() - 1] *= shape[i];
    }
  }
  return out;
}

Box intersect(const Box& a, const Box& b) {
  assert(a.rank() == b.rank());
  std::array<Interval, kMaxDims> dims;
  for (int i = 0; i < a.rank(); ++i) dims[static_cast<std::size_t>(i)] = intersect(a[i], b[i]);
  return Box(std::span<const Interval>(dims.data(), static_cast<std::size_t>(a.rank())));
}

bool contains(const Box& a, const Box& b) {
  assert(a.rank() == b.rank());
  if (b.empty()) return true;
  for (int i = 0; i < a.rank(); ++i)
    if (!contains(a[i], b[i])) return false;
  return true;
}

bool contains(const Box& a, const Dims& point) {
  assert(a.rank() == point.size());
  for (int i = 0; i < a.rank(); ++i)
    if (!contains(a[i], point[i])) return false;
  return true;
}

Box shift(const Box& a, const Dims& by) {
  assert(a.rank() == by.size());
  std::array<Interval, kMaxDims> dims;
  for (int i = 0; i < a.rank(); ++i) dims[static_cast<std::size_t>(i)] = shift(a[i], by[i]);
  return Box(std::span<const Interval>(dims.data(), static_cast<std::size_t>(a.rank())));
}

bool before(const Box& a, const Box& b) {
  if (a.rank() != b.rank()) return a.rank() < b.rank();
  for (int i = 0; i < a.rank(); ++i) {
    const auto ka = std::tuple(a[i].begin(), a[i].end());
    const auto kb = std::tuple(b[i].begin(), b[i].end());
    if (ka != kb) return ka < kb;
  }
  return false;
}

std::string to_string(const Box& box) {
  if (box.rank() == 0) return "[]";
  std::string text;
  for (int i = 0; i < box.rank(); ++i) text += (i ? "x" : "") + to_string(box[i]);
  return text;
}

std::string to_string(const Dims& dims) {
  std::string text = "[";
  for (int i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace reshard
