// SPDX-License-Identifier: Apache-2.0
// Tensors that share slots are joined (union-find, least id as root), then added to a group in
// model order for as long as every rank's bytes fit.
#include "reshard/plan/waves.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace reshard {
namespace {

class DisjointSets {
 public:
  explicit DisjointSets(std::size_t n) : parent_(n) {
    std::iota(parent_.begin(), parent_.end(), std::size_t{0});
  }
  std::size_t root(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) {
    a = root(a), b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::size_t> parent_;
};

template <class F>
void for_each_part(const Slot& slot, F&& f) {
  for (const Section& section : slot.sections)
    for (const PlacedBox& p : section.parts) f(p.tensor.index());
}

/// Bytes of staged slots by rank.
using RankBytes = std::unordered_map<Rank, Index>;

/// Tensors that share slots, ascending, and their bytes.
struct Component {
  std::vector<TensorId> tensors;
  RankBytes bytes;
};

std::vector<Component> components_of(std::span<const StagedSlots> sides) {
  if (sides.empty()) return {};
  const auto n = static_cast<std::size_t>(sides[0].layout->model().size());
  DisjointSets joined(n);
  std::vector<bool> staged(n);
  for (const StagedSlots& side : sides) {
    for (const SlotId id : side.slots) {
      std::size_t first = n;
      for_each_part(side.layout->slot(id), [&](std::size_t t) {
        staged[t] = true;
        if (first == n) first = t;
        joined.join(first, t);
      });
    }
  }
  std::vector<Component> components;
  std::vector<std::size_t> of(n);
  for (std::size_t t = 0; t < n; ++t) {
    if (!staged[t]) continue;
    const std::size_t root = joined.root(t);  // the least of them, so it comes first
    if (root == t) {
      of[t] = components.size();
      components.emplace_back();
    }
    components[of[root]].tensors.emplace_back(static_cast<TensorId::rep>(t));
  }
  for (const StagedSlots& side : sides) {
    for (const SlotId id : side.slots) {
      const Slot& slot = side.layout->slot(id);
      std::size_t first = n;
      for_each_part(slot, [&](std::size_t t) { first = std::min(first, t); });
      if (first == n) continue;
      RankBytes& bytes = components[of[joined.root(first)]].bytes;
      side.layout->rank_set(slot.ranks).for_each([&](Rank r) {
        bytes[r] += volume(side.layout->local_shape(id, r)) * bits(slot.dtype) / 8;
      });
    }
  }
  return components;
}

}  // namespace

std::vector<std::vector<TensorId>> waves_of(std::span<const StagedSlots> sides, Index cap_bytes) {
  std::vector<std::vector<TensorId>> waves;
  RankBytes held;
  bool full = false;
  for (const Component& component : components_of(sides)) {
    // The order of iteration has no effect on the result.
    const bool fits =
        std::all_of(component.bytes.begin(), component.bytes.end(), [&](const auto& b) {
          const auto it = held.find(b.first);
          return b.second + (it == held.end() ? 0 : it->second) <= cap_bytes;
        });
    if (waves.empty() || full || !fits) {
      waves.emplace_back();
      held.clear();
      full = false;
    }
    waves.back().insert(waves.back().end(), component.tensors.begin(), component.tensors.end());
    for (const auto& [rank, bytes] : component.bytes) full |= (held[rank] += bytes) > cap_bytes;
  }
  for (auto& wave : waves) std::sort(wave.begin(), wave.end());
  return waves;
}

}  // namespace reshard
