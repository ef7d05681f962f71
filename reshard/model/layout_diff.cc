// SPDX-License-Identifier: Apache-2.0
// Each element of a local tensor is in one fragment at most. So two local tensors hold the same
// elements if and only if the boxes that a fragment of one and a fragment of the other have in
// common, and keep at the same place, add up to all elements of both.
#include "reshard/model/layout_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace reshard {
namespace {

using ByTensor = std::map<std::string_view, std::vector<Fragment>>;

ByTensor fragments_of(const ModelLayout& layout, SlotId id, Rank r) {
  ByTensor out;
  for (Fragment& f : layout.local(id, r).fragments)
    out[layout.model()[f.tensor].name].push_back(std::move(f));
  for (auto& [name, fragments] : out)
    std::sort(fragments.begin(), fragments.end(),
              [](const Fragment& x, const Fragment& y) { return before(x.box, y.box); });
  return out;
}

Index elements(const std::vector<Fragment>& fragments) {
  Index n = 0;
  for (const Fragment& f : fragments) n += f.box.volume();
  return n;
}

/// The number of elements that both fragments keep at the same place: all that they share, or none.
Index agreed(const Fragment& a, const Fragment& b) {
  const Box common = intersect(a.box, b.box);
  if (common.empty()) return 0;
  Index at_a = a.where.offset, at_b = b.where.offset;
  for (int i = 0; i < common.rank(); ++i) {
    if (common[i].size() > 1 && a.where.strides[i] != b.where.strides[i]) return 0;
    at_a += (common[i].begin() - a.box[i].begin()) * a.where.strides[i];
    at_b += (common[i].begin() - b.box[i].begin()) * b.where.strides[i];
  }
  return at_a == at_b ? common.volume() : 0;
}

bool same_elements(const std::vector<Fragment>& a, const std::vector<Fragment>& b) {
  const Index all = elements(a);
  if (all != elements(b)) return false;
  Index same = 0;
  std::size_t first = 0;
  Index widest = 0;
  for (const Fragment& f : b)
    if (f.box.rank() > 0) widest = std::max(widest, f.box[0].size());
  for (const Fragment& f : a) {
    const bool scalar = f.box.rank() == 0;
    while (!scalar && first < b.size() && b[first].box[0].begin() + widest <= f.box[0].begin())
      ++first;
    for (std::size_t i = first; i < b.size(); ++i) {
      if (b[i].box.rank() != f.box.rank()) return false;
      if (!scalar && b[i].box[0].begin() >= f.box[0].end()) break;
      same += agreed(f, b[i]);
    }
  }
  return same == all;
}

std::string differing_tensors(const ModelLayout& a, SlotId in_a, const ModelLayout& b, SlotId in_b,
                              Rank r) {
  constexpr std::size_t kMaxShown = 3;
  ByTensor x = fragments_of(a, in_a, r), y = fragments_of(b, in_b, r);
  std::vector<std::string> names;
  for (const auto& [name, fragments] : x)
    if (!same_elements(fragments, y[name])) names.push_back(fmt::format("'{}'", name));
  for (const auto& [name, fragments] : y)
    if (!x.contains(name) && !fragments.empty()) names.push_back(fmt::format("'{}'", name));
  if (names.empty()) return "";
  const std::size_t more = names.size() - std::min(names.size(), kMaxShown);
  names.resize(names.size() - more);
  return fmt::format("other elements of {}{}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

/// The difference in a local tensor that both layouts have on the rank; "" if there is none.
std::string difference(const ModelLayout& a, SlotId in_a, const ModelLayout& b, SlotId in_b,
                       Rank r) {
  const Slot &x = a.slot(in_a), &y = b.slot(in_b);
  const Dims shape = a.stored_shape(in_a, r), other = b.stored_shape(in_b, r);
  if (!(shape == other)) return fmt::format("shape {} and {}", to_string(shape), to_string(other));
  const StoredForm form{x.dtype, x.map}, form_b{y.dtype, y.map};
  if (!(form == form_b)) return fmt::format("{} and {}", to_string(form), to_string(form_b));
  return differing_tensors(a, in_a, b, in_b, r);
}

class Differences {
 public:
  Differences(const ModelLayout& a, const ModelLayout& b) : a_(a), b_(b) {}

  std::vector<LayoutDifference> find() {
    (a_.ranks() | b_.ranks()).for_each([&](Rank r) { compare(r); });
    for (const CanonicalTensor& t : a_.model().tensors()) {
      const auto id = a_.model().find(t.name), other = b_.model().find(t.name);
      if (id && other && a_.omits(*id) != b_.omits(*other))
        add(t.name, a_.omits(*id) ? "omitted by the first only" : "omitted by the second only", {});
    }
    return std::move(found_);
  }

 private:
  void compare(Rank r) {
    std::map<std::string_view, std::pair<SlotId, SlotId>> slots;
    constexpr SlotId kNone(-1);
    for (SlotId id : a_.slots_of(r)) slots.emplace(a_.slot(id).name, std::pair(id, kNone));
    for (SlotId id : b_.slots_of(r))
      slots.emplace(b_.slot(id).name, std::pair(kNone, kNone)).first->second.second = id;
    for (const auto& [name, ids] : slots) {
      const auto [in_a, in_b] = ids;
      const std::string what = in_b == kNone   ? "only in the first"
                               : in_a == kNone ? "only in the second"
                                               : difference(a_, in_a, b_, in_b, r);
      if (!what.empty()) add(std::string(name), what, r);
    }
  }

  void add(std::string name, std::string what, std::optional<Rank> r) {
    const auto [it, is_new] = index_.emplace(std::pair(name, what), found_.size());
    if (is_new) found_.push_back({std::move(name), {}, std::move(what)});
    if (r) found_[it->second].ranks.insert(*r);
  }

  const ModelLayout& a_;
  const ModelLayout& b_;
  std::vector<LayoutDifference> found_;
  std::map<std::pair<std::string, std::string>, std::size_t> index_;
};

}  // namespace

std::vector<LayoutDifference> diff_layouts(const ModelLayout& a, const ModelLayout& b) {
  return Differences(a, b).find();
}

}  // namespace reshard
