// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/families/dtensor_slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace reshard::families {
namespace {

constexpr std::size_t kMaxPieces = std::size_t{1} << 22;

}  // namespace

/// A run of a stored dimension as intervals of its canonical dimensions, and its begin in the local
/// tensor.
struct DTensorSlots::Piece {
  Box box;
  Dims at;
};

/// The part of a stored dimension that a rank holds.
struct DTensorSlots::LocalDim {
  Dims shape;  ///< of the local tensor, over the canonical dimensions.
  std::vector<Piece> pieces;

  LocalDim(const CanonicalTensor& tensor, const StoredDim& dim, const std::vector<Interval>& runs) {
    const auto whole = [&](const Interval& r) {
      return r.begin() % dim.minor == 0 && r.end() % dim.minor == 0;
    };
    if (std::all_of(runs.begin(), runs.end(), whole)) {
      by_first(tensor, dim, runs);
    } else {
      by_last(tensor, dim, runs);
    }
  }

 private:
  /// Runs of whole indices of the first canonical dimension.
  void by_first(const CanonicalTensor& t, const StoredDim& dim, const std::vector<Interval>& runs) {
    Index at = 0;
    for (const Interval& run : runs) {
      const Interval first{run.begin() / dim.minor, run.end() / dim.minor};
      std::vector<Interval> box{first};
      for (int i = 1; i < dim.count; ++i) box.emplace_back(0, t.shape[dim.first + i]);
      Dims corner = Dims::filled(dim.count, 0);
      corner[0] = at;
      pieces.push_back({Box(box), corner});
      at += first.size();
    }
    shape.push_back(at);
    for (int i = 1; i < dim.count; ++i) shape.push_back(t.shape[dim.first + i]);
  }

  /// Any runs: one piece per run along the last canonical dimension.
  void by_last(const CanonicalTensor& t, const StoredDim& dim, const std::vector<Interval>& runs) {
    const Index last = t.shape[dim.first + dim.count - 1];
    Index at = 0;
    for (const Interval& run : runs) {
      for (Index begin = run.begin(); begin < run.end();) {
        const Index end = std::min(run.end(), (begin / last + 1) * last);
        Index rest = begin / last;
        std::vector<Interval> box(static_cast<std::size_t>(dim.count));
        for (int i = dim.count - 2; i >= 0; --i) {
          const Index size = t.shape[dim.first + i];
          box[static_cast<std::size_t>(i)] = Interval{rest % size, rest % size + 1};
          rest /= size;
        }
        box.back() = Interval{begin % last, begin % last + (end - begin)};
        Dims corner = Dims::filled(dim.count, 0);
        corner[dim.count - 1] = at;
        pieces.push_back({Box(box), corner});
        at += end - begin;
        begin = end;
      }
    }
    shape = Dims::filled(dim.count, 1);
    shape[dim.count - 1] = at;
  }
};

Result<std::size_t> DTensorSlots::add_mesh(const DTensorMesh& mesh, Index offset) {
  const auto bad = [&](const std::string& what) {
    return fail(Code::invalid_argument, fmt::format("mesh '{}': {}", mesh.name, what));
  };
  MeshUse use{mesh.shape, {}, {}, std::nullopt};
  Index size = 1;
  for (Index n : mesh.shape) {
    if (n < 1 || n > kMaxRanks || size * n > kMaxRanks)
      return bad(fmt::format("its shape must have 1 to {} ranks", kMaxRanks));
    size *= n;
  }
  if (mesh.shape.empty() || mesh.shape.size() > kMaxDims)
    return bad(fmt::format("it must have 1 to {} dimensions, not {}", kMaxDims, mesh.shape.size()));
  if (static_cast<Index>(mesh.ranks.size()) != size)
    return bad(fmt::format("its shape has {} ranks but {} are listed", size, mesh.ranks.size()));
  if (!mesh.dim_names.empty() && mesh.dim_names.size() != mesh.shape.size())
    return bad(fmt::format("it has {} dimensions but {} names of them", mesh.shape.size(),
                           mesh.dim_names.size()));
  bool consecutive = true;
  for (const Rank r : mesh.ranks) {
    const Index moved = r.value() + offset;
    if (r.value() < 0 || moved >= kMaxRanks)
      return bad(fmt::format("rank {} must be between 0 and {}", moved, kMaxRanks - 1));
    const Rank at(static_cast<Rank::rep>(moved));
    if (use.set.contains(at)) return bad(fmt::format("rank {} is listed twice", r.value()));
    consecutive &= use.ranks.empty() || at.value() == use.ranks.back().value() + 1;
    use.set.insert(at);
    use.ranks.push_back(at);
  }
  explicit_.add_ranks(use.set);
  if (consecutive) {
    std::vector<Axis> axes;
    for (std::size_t i = mesh.shape.size(); i-- > 0;)
      axes.push_back(
          {mesh.dim_names.empty() ? fmt::format("dim{}", i) : mesh.dim_names[i], mesh.shape[i]});
    use.closed = b_.add_mesh(RESHARD_TRY(Mesh::make(std::move(axes), use.ranks[0])));
  }
  meshes_.push_back(std::move(use));
  return meshes_.size() - 1;
}

std::vector<DTensorSlots::StoredDim> DTensorSlots::stored_dims(const CanonicalTensor& t) {
  std::vector<StoredDim> dims;
  for (int i = 0; i < t.shape.size(); ++i) {
    if (i > 0 && (t.merged.bits >> (i - 1) & 1) != 0) {
      ++dims.back().count;
      dims.back().extent *= t.shape[i];
      dims.back().minor *= t.shape[i];
    } else {
      dims.push_back({i, 1, t.shape[i], 1});
    }
  }
  return dims;
}

Index DTensorSlots::coordinate(const MeshUse& mesh, std::size_t rank, int dim) {
  auto rest = static_cast<Index>(rank);
  for (std::size_t i = mesh.shape.size() - 1; i > static_cast<std::size_t>(dim); --i)
    rest /= mesh.shape[i];
  return rest % mesh.shape[static_cast<std::size_t>(dim)];
}

std::vector<Index> DTensorSlots::coordinates(const MeshUse& mesh, std::size_t rank,
                                             const std::vector<AppliedShard>& shards) const {
  std::vector<Index> at;
  for (const AppliedShard& s : shards) at.push_back(coordinate(mesh, rank, s.mesh_dim));
  return at;
}

std::vector<Interval> DTensorSlots::runs(const MeshUse& mesh, const StoredDim& dim,
                                         const std::vector<AppliedShard>& shards,
                                         const std::vector<Index>& at) const {
  std::vector<DimShard> sizes;
  for (const AppliedShard& s : shards)
    sizes.push_back({mesh.shape[static_cast<std::size_t>(s.mesh_dim)], s.split_factor});
  return local_runs(dim.extent, sizes, at);
}

std::optional<CutId> DTensorSlots::closed_cut(std::size_t mesh, const StoredDim& dim,
                                              const std::vector<AppliedShard>& shards) {
  if (shards.empty()) return CutId(0);
  const auto [it, fresh] =
      cuts_.try_emplace({mesh, dim.extent, dim.minor, shards}, std::optional<CutId>());
  if (fresh) it->second = find_cut(meshes_[mesh], dim, shards);
  return it->second;
}

std::optional<CutId> DTensorSlots::find_cut(const MeshUse& mesh, const StoredDim& dim,
                                            const std::vector<AppliedShard>& shards) {
  std::vector<DimShard> sizes;
  for (const AppliedShard& s : shards)
    sizes.push_back({mesh.shape[static_cast<std::size_t>(s.mesh_dim)], s.split_factor});
  const std::vector<int> order = plain_order(sizes);
  DimCut how;
  how.rule = CutRule::ceil;
  if (order.empty() || order.size() > how.axes.size()) return std::nullopt;
  const int last = static_cast<int>(mesh.shape.size()) - 1;
  for (int i : order)
    how.axes[static_cast<std::size_t>(how.num_axes++)] =
        static_cast<std::int8_t>(last - shards[static_cast<std::size_t>(i)].mesh_dim);
  const Mesh& grid = b_.mesh(*mesh.closed);
  std::vector<Index> at(shards.size(), 0);
  while (true) {
    Dims coordinates = Dims::filled(last + 1, 0);
    for (std::size_t i = 0; i < at.size(); ++i) coordinates[last - shards[i].mesh_dim] = at[i];
    const Interval guess = cut(how, grid, dim.extent / dim.minor, coordinates);
    const auto held = local_runs(dim.extent, sizes, at);
    if (held.size() > 1 || guess.empty() != held.empty() ||
        (!held.empty() && held[0] != Interval{guess.begin() * dim.minor, guess.end() * dim.minor}))
      return std::nullopt;
    std::size_t i = 0;
    for (; i < at.size() && ++at[i] == sizes[i].size; ++i) at[i] = 0;
    if (i == at.size()) return b_.add_cut(how);
  }
}

Result<> DTensorSlots::add(std::size_t mesh, TensorId tensor, const std::string& name,
                           const TensorShards& shards, std::optional<DType> dtype) {
  dtype_ = dtype;
  RESHARD_TRY(names_.take(name, meshes_[mesh].set));
  const auto dims = stored_dims(b_.model()[tensor]);
  if (meshes_[mesh].closed && add_closed(mesh, tensor, name, dims, shards)) return {};
  return add_explicit(meshes_[mesh], tensor, name, dims, shards);
}

bool DTensorSlots::add_closed(std::size_t mesh, TensorId tensor, const std::string& name,
                              const std::vector<StoredDim>& dims, const TensorShards& shards) {
  const CanonicalTensor& t = b_.model()[tensor];
  Section section = whole_tensor(b_.model(), tensor);
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const auto how = closed_cut(mesh, dims[d], shards[d]);
    if (!how) return false;
    section.cuts[static_cast<std::size_t>(dims[d].first)] = *how;
  }
  b_.add(Slot{.name = name,
              .dtype = dtype_.value_or(t.dtype),
              .mesh = *meshes_[mesh].closed,
              .ranks = b_.add_ranks(meshes_[mesh].set),
              .sections = {std::move(section)},
              .merged = t.merged,
              .casts = dtype_.has_value()});
  return true;
}

DTensorSlots::RankClasses DTensorSlots::rank_classes(const MeshUse& mesh,
                                                     const std::vector<StoredDim>& dims,
                                                     const TensorShards& shards) const {
  RankClasses alike;
  for (std::size_t i = 0; i < mesh.ranks.size(); ++i) {
    std::vector<std::vector<Index>> at;
    for (std::size_t d = 0; d < dims.size(); ++d) at.push_back(coordinates(mesh, i, shards[d]));
    alike[at].insert(mesh.ranks[i]);
  }
  return alike;
}

Result<> DTensorSlots::add_explicit(const MeshUse& mesh, TensorId tensor, const std::string& name,
                                    const std::vector<StoredDim>& dims,
                                    const TensorShards& shards) {
  for (const auto& [at, ranks] : rank_classes(mesh, dims, shards)) {
    std::vector<std::vector<Interval>> held;
    for (std::size_t d = 0; d < dims.size(); ++d)
      held.push_back(runs(mesh, dims[d], shards[d], at[d]));
    explicit_.add(ranks, RESHARD_TRY(local_tensor(tensor, name, dims, held)));
  }
  return {};
}

Result<ExplicitTensor> DTensorSlots::local_tensor(TensorId tensor, const std::string& name,
                                                  const std::vector<StoredDim>& dims,
                                                  const std::vector<std::vector<Interval>>& held) {
  const CanonicalTensor& t = b_.model()[tensor];
  ExplicitTensor out = named(tensor, name);
  out.merged = t.merged;
  std::vector<Piece> whole{Piece{}};
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const LocalDim mine(t, dims[d], held[d]);
    for (Index n : mine.shape) out.shape.push_back(n);
    std::vector<Piece> longer;
    for (const Piece& head : whole) {
      for (const Piece& tail : mine.pieces) {
        std::vector<Interval> box;
        for (int i = 0; i < head.box.rank(); ++i) box.push_back(head.box[i]);
        for (int i = 0; i < tail.box.rank(); ++i) box.push_back(tail.box[i]);
        Piece joined{Box(box), head.at};
        for (Index i : tail.at) joined.at.push_back(i);
        longer.push_back(std::move(joined));
      }
      if (num_pieces_ + longer.size() > kMaxPieces) RESHARD_TRY(count_pieces(longer.size()));
    }
    whole = std::move(longer);
  }
  RESHARD_TRY(count_pieces(whole.size()));
  for (Piece& piece : whole) {
    if (piece.box.empty()) continue;
    PlacedBox placed{tensor, piece.box, piece.at, {}};
    std::iota(placed.dims.begin(), placed.dims.begin() + piece.box.rank(), std::int8_t{0});
    out.parts.push_back(placed);
  }
  return out;
}

ExplicitTensor DTensorSlots::named(TensorId tensor, const std::string& name) const {
  return {.name = name,
          .dtype = dtype_.value_or(b_.model()[tensor].dtype),
          .casts = dtype_.has_value()};
}

Result<> DTensorSlots::count_pieces(std::size_t more) {
  num_pieces_ += more;
  if (num_pieces_ <= kMaxPieces) return {};
  return fail(Code::unsupported,
              fmt::format("the placements cut the model into more than {} pieces", kMaxPieces));
}

Result<> DTensorSlots::add_stack(std::size_t mesh, const Section& stack, const std::string& name,
                                 const TensorShards& shards, std::optional<DType> dtype) {
  dtype_ = dtype;
  RESHARD_TRY(names_.take(name, meshes_[mesh].set));
  std::vector<StoredDim> dims;
  for (int d = 0; d < stack.extent.size(); ++d) dims.push_back({d, 1, stack.extent[d], 1});
  Section section = stack;
  bool closed = meshes_[mesh].closed.has_value();
  for (std::size_t d = 0; closed && d < dims.size(); ++d) {
    const auto how = closed_cut(mesh, dims[d], shards[d]);
    closed = how.has_value();
    if (closed) section.cuts[d] = *how;
  }
  if (!closed) return add_stacked_ranks(meshes_[mesh], stack, name, dims, shards);
  b_.add(Slot{.name = name,
              .dtype = dtype_.value_or(b_.model()[stack.parts[0].tensor].dtype),
              .mesh = *meshes_[mesh].closed,
              .ranks = b_.add_ranks(meshes_[mesh].set),
              .sections = {std::move(section)},
              .casts = dtype_.has_value()});
  return {};
}

namespace {

/// The runs of each dimension of a stack that a rank holds, in storage order.
using LocalRuns = std::vector<std::vector<Interval>>;

/// The intersection of a part with a box of the stack, moved to the box's position in memory; none
/// if empty.
std::optional<PlacedBox> clipped(const PlacedBox& part, const std::vector<Interval>& box,
                                 const Dims& at) {
  PlacedBox out = part;
  std::vector<Interval> canonical;
  for (int i = 0; i < part.box.rank(); ++i) canonical.push_back(part.box[i]);
  for (int d = 0; d < part.at.size(); ++d) {
    const Interval& run = box[static_cast<std::size_t>(d)];
    int from = -1;  // the canonical dimension that lies along d
    for (int i = 0; i < part.box.rank(); ++i)
      if (part.dims[static_cast<std::size_t>(i)] == d) from = i;
    const Index size = from < 0 ? 1 : part.box[from].size();
    const Interval held = intersect(run, Interval{part.at[d], part.at[d] + size});
    if (held.empty()) return std::nullopt;
    if (from >= 0)
      canonical[static_cast<std::size_t>(from)] = shift(held, part.box[from].begin() - part.at[d]);
    out.at[d] = at[d] + held.begin() - run.begin();
  }
  out.box = Box(canonical);
  return out;
}

/// Calls visit(box, its begin in memory) for each combination of runs.
template <class Visit>
void each_box(const LocalRuns& held, std::vector<Interval>& box, const Dims& at,
              const Visit& visit) {
  const std::size_t d = box.size();
  if (d == held.size()) return visit(box, at);
  Index begin = 0;
  for (const Interval& run : held[d]) {
    Dims next = at;
    next.push_back(begin);
    box.push_back(run);
    each_box(held, box, next, visit);
    box.pop_back();
    begin += run.size();
  }
}

}  // namespace

Result<> DTensorSlots::add_stacked_ranks(const MeshUse& mesh, const Section& stack,
                                         const std::string& name,
                                         const std::vector<StoredDim>& dims,
                                         const TensorShards& shards) {
  for (const auto& [where, ranks] : rank_classes(mesh, dims, shards)) {
    LocalRuns held;
    ExplicitTensor out = named(stack.parts[0].tensor, name);
    for (std::size_t d = 0; d < dims.size(); ++d) {
      held.push_back(runs(mesh, dims[d], shards[d], where[d]));
      Index size = 0;
      for (const Interval& run : held.back()) size += run.size();
      out.shape.push_back(size);
    }
    std::vector<Interval> box;
    each_box(held, box, Dims{}, [&](const std::vector<Interval>& there, const Dims& begin) {
      for (const PlacedBox& part : stack.parts)
        if (auto piece = clipped(part, there, begin)) out.parts.push_back(*std::move(piece));
    });
    RESHARD_TRY(count_pieces(out.parts.size()));
    explicit_.add(ranks, std::move(out));
  }
  return {};
}

}  // namespace reshard::families
