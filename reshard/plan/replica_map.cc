// SPDX-License-Identifier: Apache-2.0
// How a list of cells is found without looking at each rank: the parts of a tensor are reduced to a
// key of everything that determines the boxes and their ranks (rank set, cuts, positions along cut
// dimensions). Equal keys have equal cells.
#include "reshard/plan/replica_map.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "reshard/base/hash.h"
#include "reshard/index/region.h"

namespace reshard {

SetId RankSets::intern(const RankSet& ranks) {
  auto& bucket = by_hash_[ranks.hash()];
  for (SetId id : bucket)
    if (sets_[id.index()] == ranks) return id;
  const SetId id(static_cast<SetId::rep>(sets_.size()));
  bucket.push_back(id);
  sets_.push_back(ranks);
  return id;
}

namespace {

/// Adds a box to disjoint ones and splits those that overlap in part.
void overlay(std::vector<Replica>& disjoint, const Replica& fresh) {
  std::vector<Box> rest{fresh.box};
  const std::size_t n = disjoint.size();
  for (std::size_t i = 0; i < n && !rest.empty(); ++i) {
    const Box common = intersect(disjoint[i].box, fresh.box);
    if (common.empty()) continue;
    for (const Box& b : difference(disjoint[i].box, common))
      disjoint.push_back({b, disjoint[i].ranks});
    disjoint[i] = {common, disjoint[i].ranks | fresh.ranks};
    std::vector<Box> left;
    for (const Box& r : rest)
      for (const Box& b : difference(r, common)) left.push_back(b);
    rest = std::move(left);
  }
  for (const Box& b : rest) disjoint.push_back({b, fresh.ranks});
}

/// True if sorted boxes differ in at most one dimension and follow each other there, which makes
/// them disjoint.
bool is_one_row(const std::vector<Replica>& sorted) {
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const Box &a = sorted[i - 1].box, &b = sorted[i].box;
    int differing = -1;
    for (int d = 0; d < a.rank(); ++d) {
      if (a[d] == b[d]) continue;
      if (differing >= 0 || a[d].end() > b[d].begin()) return false;
      differing = d;
    }
    if (i > 1)
      for (int d = 0; d < a.rank(); ++d)
        if (d != differing && sorted[0].box[d] != b[d]) return false;
  }
  return true;
}

/// The pieces that a cut makes of a dimension, with the ranks that hold each; sorted and disjoint.
struct CutPieces {
  std::vector<std::pair<Interval, RankSet>> pieces;

  CutPieces(const DimCut& how, const Mesh& mesh, Index extent) {
    std::map<std::pair<Index, Index>, RankSet> by_interval;
    for (Index i = 0; i < mesh.size(); ++i) {
      const Rank r(static_cast<Rank::rep>(mesh.first().value() + i));
      Dims coordinates;
      for (int a = 0; a < static_cast<int>(mesh.axes().size()); ++a)
        coordinates.push_back(mesh.coordinate(r, a));
      const Interval held = cut(how, mesh, extent, coordinates);
      if (!held.empty()) by_interval[{held.begin(), held.end()}].insert(r);
    }
    for (auto& [interval, ranks] : by_interval)
      pieces.emplace_back(Interval{interval.first, interval.second}, std::move(ranks));
  }

  /// The first piece that ends after position i.
  std::size_t at(Index i) const {
    const auto it = std::partition_point(pieces.begin(), pieces.end(),
                                         [&](const auto& p) { return p.first.end() <= i; });
    return static_cast<std::size_t>(it - pieces.begin());
  }
};

struct KeyHash {
  std::size_t operator()(const std::vector<Index>& key) const {
    return hash64({reinterpret_cast<const char*>(key.data()), key.size() * sizeof(Index)});
  }
};

class Expander {
 public:
  explicit Expander(const ModelLayout& layout) : layout_(layout) {}

  /// Appends everything that determines the cells of this part.
  void key(const PartId& part_id, std::vector<Index>& out) {
    const Slot& slot = layout_.slot(part_id.slot);
    const Section& section = slot.sections[static_cast<std::size_t>(part_id.section)];
    const PlacedBox& p = section.parts[static_cast<std::size_t>(part_id.part)];
    out.push_back(slot.ranks.value());
    out.push_back(slot.mesh.value());
    std::array<bool, kMaxDims> mapped{};
    for (int i = 0; i < p.box.rank(); ++i) {
      const int k = p.dims[static_cast<std::size_t>(i)];
      mapped[static_cast<std::size_t>(k)] = true;
      const CutId cut = section.cuts[static_cast<std::size_t>(k)];
      out.push_back(p.box[i].begin());
      out.push_back(p.box[i].end());
      out.push_back(cut.value());
      if (cut == CutId(0)) continue;
      out.push_back(p.at[k]);
      out.push_back(p.step(i));
      out.push_back(section.extent[k]);
    }
    for (int k = 0; k < section.extent.size(); ++k) {
      const CutId cut = section.cuts[static_cast<std::size_t>(k)];
      if (mapped[static_cast<std::size_t>(k)] || cut == CutId(0)) continue;
      out.push_back(cut.value());
      out.push_back(section.extent[k]);
      out.push_back(static_cast<Index>(pieces(slot.mesh, cut, section.extent[k]).at(p.at[k])));
    }
    out.push_back(-1);
  }

  void expand(const PartId& part_id, std::vector<Replica>& out) {
    const Slot& slot = layout_.slot(part_id.slot);
    const Section& section = slot.sections[static_cast<std::size_t>(part_id.section)];
    const PlacedBox& p = section.parts[static_cast<std::size_t>(part_id.part)];
    std::vector<Replica> held{{p.box, layout_.rank_set(slot.ranks)}};
    for (int k = 0; k < section.extent.size(); ++k) {
      const CutId cut = section.cuts[static_cast<std::size_t>(k)];
      if (cut == CutId(0)) continue;
      int dim = -1;
      for (int i = 0; i < p.box.rank(); ++i)
        if (p.dims[static_cast<std::size_t>(i)] == k) dim = i;
      held = split(held, p, dim, k, pieces(slot.mesh, cut, section.extent[k]));
    }
    for (Replica& h : held)
      if (!h.box.empty() && !h.ranks.empty()) out.push_back(std::move(h));
  }

 private:
  /// Cuts replicas along full dimension k, which is canonical dimension `dim` or, if that is
  /// negative, a single position.
  static std::vector<Replica> split(const std::vector<Replica>& held, const PlacedBox& p, int dim,
                                    int k, const CutPieces& cut) {
    const Index size = dim < 0 ? 1 : (p.box[dim].size() - 1) * p.step(dim) + 1;
    const Interval wanted{p.at[k], p.at[k] + size};
    std::vector<Replica> out;
    for (std::size_t i = cut.at(wanted.begin()); i < cut.pieces.size(); ++i) {
      const Interval common = intersect(cut.pieces[i].first, wanted);
      if (common.empty()) break;
      for (const Replica& h : held) {
        RankSet ranks = h.ranks & cut.pieces[i].second;
        if (ranks.empty()) continue;
        const Box box = dim < 0 ? h.box : h.box.with(dim, p.within(dim, common));
        out.push_back({box, std::move(ranks)});
      }
    }
    return out;
  }

  const CutPieces& pieces(MeshId mesh, CutId cut, Index extent) {
    const auto key = std::tuple(mesh.value(), cut.value(), extent);
    auto it = pieces_.find(key);
    if (it == pieces_.end())
      it = pieces_.emplace(key, CutPieces(layout_.dim_cut(cut), layout_.mesh(mesh), extent)).first;
    return it->second;
  }

  const ModelLayout& layout_;
  std::map<std::tuple<int, int, Index>, CutPieces> pieces_;
};

}  // namespace

std::vector<Cell> disjoint_cells(std::vector<Replica> replicas, RankSets& sets) {
  std::sort(replicas.begin(), replicas.end(),
            [](const Replica& a, const Replica& b) { return before(a.box, b.box); });
  std::vector<Replica> unique;
  for (Replica& h : replicas) {
    if (!unique.empty() && unique.back().box == h.box) {
      unique.back().ranks = unique.back().ranks | h.ranks;
    } else {
      unique.push_back(std::move(h));
    }
  }
  if (!is_one_row(unique)) {
    std::vector<Replica> disjoint;
    for (const Replica& h : unique) overlay(disjoint, h);
    std::sort(disjoint.begin(), disjoint.end(),
              [](const Replica& a, const Replica& b) { return before(a.box, b.box); });
    unique = std::move(disjoint);
  }
  std::vector<Cell> cells;
  for (const Replica& h : unique) cells.push_back({h.box, sets.intern(h.ranks)});
  return cells;
}

ReplicaMap::ReplicaMap(const ModelLayout& layout, RankSets& sets) {
  Expander expander(layout);
  std::unordered_map<std::vector<Index>, ListId, KeyHash> known;
  std::vector<Index> key;
  lists_.reserve(static_cast<std::size_t>(layout.model().size()));
  for (Index t = 0; t < layout.model().size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    key.clear();
    for (const auto& part_id : layout.parts_of(id)) expander.key(part_id, key);
    const auto [it, fresh] =
        known.try_emplace(key, ListId(static_cast<ListId::rep>(cells_.size())));
    if (fresh) {
      std::vector<Replica> held;
      for (const auto& part_id : layout.parts_of(id)) expander.expand(part_id, held);
      cells_.push_back(disjoint_cells(std::move(held), sets));
    }
    lists_.push_back(it->second);
  }
}

}  // namespace reshard
