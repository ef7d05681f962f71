// SPDX-License-Identifier: Apache-2.0
#include "reshard/index/region.h"

#include <algorithm>
#include <optional>

namespace reshard {
namespace {

/// The union of `a` and `b` if that is a box: they are equal in all dimensions but one, where they
/// touch.
std::optional<Box> joined(const Box& a, const Box& b) {
  int differing = -1;
  for (int i = 0; i < a.rank(); ++i) {
    if (a[i] == b[i]) continue;
    if (differing >= 0) return std::nullopt;
    differing = i;
  }
  if (differing < 0) return a;
  const Interval x = a[differing], y = b[differing];
  if (x.end() == y.begin()) return a.with(differing, Interval{x.begin(), y.end()});
  if (y.end() == x.begin()) return a.with(differing, Interval{y.begin(), x.end()});
  return std::nullopt;
}

}  // namespace

Region::Region(const Box& box) { add(box); }

Index Region::volume() const {
  Index v = 0;
  for (const Box& b : boxes_) v += b.volume();
  return v;
}

void Region::add(const Box& box) {
  std::vector<Box> fresh;
  if (!box.empty()) fresh.push_back(box);
  for (const Box& have : boxes_) {
    std::vector<Box> rest;
    for (const Box& f : fresh) {
      auto d = difference(f, have);
      rest.insert(rest.end(), d.begin(), d.end());
    }
    fresh = std::move(rest);
    if (fresh.empty()) return;
  }
  boxes_.insert(boxes_.end(), fresh.begin(), fresh.end());
  normalise();
}

void Region::subtract(const Box& box) {
  std::vector<Box> rest;
  for (const Box& have : boxes_) {
    auto d = difference(have, box);
    rest.insert(rest.end(), d.begin(), d.end());
  }
  boxes_ = std::move(rest);
  normalise();
}

void Region::normalise() {
  bool changed = true;
  while (changed) {
    changed = false;
    std::sort(boxes_.begin(), boxes_.end(), before);
    for (std::size_t i = 0; i < boxes_.size() && !changed; ++i) {
      for (std::size_t j = i + 1; j < boxes_.size() && !changed; ++j) {
        if (auto one = joined(boxes_[i], boxes_[j])) {
          boxes_[i] = *one;
          boxes_.erase(boxes_.begin() + static_cast<std::ptrdiff_t>(j));
          changed = true;
        }
      }
    }
  }
}

std::vector<Box> difference(const Box& a, const Box& b) {
  const Box common = intersect(a, b);
  if (a.empty()) return {};
  if (common.empty()) return {a};
  std::vector<Box> parts;
  Box rest = a;
  for (int i = 0; i < a.rank(); ++i) {
    if (rest[i].begin() < common[i].begin())
      parts.push_back(rest.with(i, Interval{rest[i].begin(), common[i].begin()}));
    if (common[i].end() < rest[i].end())
      parts.push_back(rest.with(i, Interval{common[i].end(), rest[i].end()}));
    rest = rest.with(i, common[i]);
  }
  return parts;
}

Region intersect(const Region& a, const Region& b) {
  Region out;
  for (const Box& x : a.boxes())
    for (const Box& y : b.boxes()) out.add(intersect(x, y));
  return out;
}

bool same_points(const Region& a, const Region& b) {
  if (a.volume() != b.volume()) return false;
  Region rest = a;
  for (const Box& y : b.boxes()) rest.subtract(y);
  return rest.empty();
}

std::string to_string(const Region& region) {
  std::string text = "{";
  for (std::size_t i = 0; i < region.boxes().size(); ++i)
    text += (i ? ", " : "") + to_string(region.boxes()[i]);
  return text + "}";
}

}  // namespace reshard
