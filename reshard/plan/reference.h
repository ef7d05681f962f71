// SPDX-License-Identifier: Apache-2.0
// The naive reference planner: the definition of a correct plan, element by element. Slow on
// purpose, and independent of cells, supplies and lines. Tests compare the planner with it.
#pragma once

#include <map>
#include <set>
#include <tuple>

#include "reshard/model/model_layout.h"

namespace reshard::reference {

/// An element of a canonical tensor: its row-major position.
using Element = std::pair<TensorId, Index>;

/// Calls f(element) for each element of a box of a tensor.
template <class F>
void for_each_element(const ModelSpec& model, TensorId id, const Box& box, F&& f) {
  const Dims strides = row_major(model[id].shape);
  for (Index i = 0; i < box.volume(); ++i) {
    Index rest = i, at = 0;
    for (int d = box.rank() - 1; d >= 0; --d) {
      at += (box[d].begin() + rest % box[d].size()) * strides[d];
      rest /= box[d].size();
    }
    f(Element{id, at});
  }
}

/// The ranks that hold each element, from the shard maps of all ranks.
inline std::map<Element, std::set<Rank>> holders(const ModelLayout& layout) {
  std::map<Element, std::set<Rank>> out;
  layout.ranks().for_each([&](Rank r) {
    for (SlotId slot : layout.slots_of(r))
      for (const Fragment& f : layout.local(slot, r).fragments)
        for_each_element(layout.model(), f.tensor, f.box, [&](Element e) { out[e].insert(r); });
  });
  return out;
}

/// For each destination rank and element, the ranks that may send it: the rank itself if it holds
/// the element.
using Plan = std::map<std::pair<Rank, Element>, std::set<Rank>>;

inline Plan plan(const ModelLayout& source, const ModelLayout& target) {
  const auto have = holders(source);
  Plan out;
  for (const auto& [element, ranks] : holders(target))
    for (Rank d : ranks) {
      const std::set<Rank>& from = have.at(element);
      out[{d, element}] = from.contains(d) ? std::set<Rank>{d} : from;
    }
  return out;
}

/// The least possible load of the busiest sender in bytes (Hall): the maximum over all sets of
/// source ranks of the bytes that only they can send, divided by their number. @pre at most 20
/// source ranks send
inline double optimal_max_egress(const Plan& plan, const ModelSpec& model) {
  std::map<std::set<Rank>, double> bytes;
  std::set<Rank> senders;
  for (const auto& [to, from] : plan) {
    if (from.contains(to.first)) continue;
    bytes[from] += bits(model[to.second.first].dtype) / 8.0;
    senders.insert(from.begin(), from.end());
  }
  const std::vector<Rank> all(senders.begin(), senders.end());
  double best = 0;
  for (std::size_t subset = 1; subset < std::size_t{1} << all.size(); ++subset) {
    std::set<Rank> chosen;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (subset >> i & 1) chosen.insert(all[i]);
    double only = 0;
    for (const auto& [from, n] : bytes)
      if (std::includes(chosen.begin(), chosen.end(), from.begin(), from.end())) only += n;
    best = std::max(best, only / static_cast<double>(chosen.size()));
  }
  return best;
}

}  // namespace reshard::reference
