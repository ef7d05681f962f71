// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reshard/base/value_map.h"
#include "reshard/layout/strided.h"
#include "reshard/model/tensor.h"
#include "reshard/sharding/cut.h"
#include "reshard/sharding/mesh.h"
#include "reshard/sharding/rank_set.h"

namespace reshard {

using MeshId = StrongInt<struct MeshIdTag>;
using RankSetId = StrongInt<struct RankSetIdTag>;
using SlotId = StrongInt<struct SlotIdTag>;
using CutId = StrongInt<struct CutIdTag, std::int16_t>;

/// A box of a canonical tensor, placed in the index space of a section's full tensor.
///
/// Canonical index c (inside `box`) is full index f with f[dims[i]] = at[dims[i]] + (c[i] -
/// box[i].begin()) * (1 + gaps[i]), and f[k] = at[k] for the full dimensions k that no canonical
/// dimension maps to. What is repeated k times in a row is k parts with gaps of k - 1.
struct PlacedBox {
  TensorId tensor;
  Box box;
  Dims at;                                   ///< as many entries as the full tensor has dimensions.
  std::array<std::int8_t, kMaxDims> dims{};  ///< canonical dimension -> full dimension.
  /// Full indices between those of neighbours along a canonical dimension.
  std::array<std::int16_t, kMaxDims> gaps{};

  Index step(int i) const { return 1 + gaps[static_cast<std::size_t>(i)]; }
  /// The canonical indices along dimension i whose full index is in `held`.
  Interval within(int i, Interval held) const;
};

/// A full tensor made of canonical ones, and how ranks cut it. What no part covers is padding.
struct Section {
  Dims extent;
  std::array<CutId, kMaxDims> cuts{};  ///< per full dimension; CutId 0 cuts nothing.
  std::vector<PlacedBox> parts;        ///< disjoint in the full index space.
};

/// A local tensor that each rank of a set holds: the held pieces of its sections, stacked along one
/// dimension, stored row-major.
struct Slot {
  std::string name;  ///< the framework's own, as its module reports it on those ranks.
  DType dtype = DType::bf16;
  MeshId mesh;  ///< whose coordinates the cuts mean.
  RankSetId ranks;
  int stack_dim = 0;
  bool padded = false;  ///< declares that some local elements belong to no canonical tensor.
  std::vector<Section> sections = {};
  MergedDims merged = {};  ///< dimensions of the sections that the module reports as one.
  /// What is stored of the canonical values.
  ValueMap map = ValueMap::identity;
  bool casts = false;  ///< values of canonical tensors of another dtype are rounded to this one.
};

/// One canonical box inside one local tensor of one rank.
struct Fragment {
  TensorId tensor;
  SlotId slot;
  Box box;        ///< of the canonical tensor.
  Strided where;  ///< of the local tensor, in elements.
};

/// A rank's local tensor: its slot, shape and fragments. Uncovered elements are declared padding.
struct LocalTensor {
  SlotId slot;
  Dims shape;
  std::vector<Fragment> fragments;
};

/// Names a part of a layout: part `part` of section `section` of a slot. Over all ranks: a rank of
/// the slot holds of it a fragment or nothing.
struct PartId {
  SlotId slot;
  std::int32_t section = 0, part = 0;
};

/// Which rank holds which canonical boxes where: any rank's shard map in closed form.
///
/// Immutable once built; safe to read from any thread. Holds its ModelSpec alive.
class ModelLayout {
 public:
  const std::string& name() const { return name_; }
  const ModelSpec& model() const { return *model_; }
  const std::shared_ptr<const ModelSpec>& shared_model() const { return model_; }

  /// All ranks of the layout, those that hold nothing included.
  const RankSet& ranks() const { return ranks_; }
  Index num_slots() const { return static_cast<Index>(slots_.size()); }
  const Slot& slot(SlotId id) const { return slots_[id.index()]; }
  const Mesh& mesh(MeshId id) const { return meshes_[id.index()]; }
  const DimCut& dim_cut(CutId id) const { return cuts_[id.index()]; }
  const RankSet& rank_set(RankSetId id) const { return rank_sets_[id.index()]; }

  /// The slots that this rank holds, ascending. Cost: proportional to their number and that of rank
  /// sets.
  std::vector<SlotId> slots_of(Rank r) const;
  /// @pre the rank is in the slot's rank set
  Dims local_shape(SlotId id, Rank r) const;
  /// The shape as the framework's module reports it: local_shape with Slot::merged applied.
  /// @pre the rank is in the slot's rank set
  Dims stored_shape(SlotId id, Rank r) const {
    return merged_shape(local_shape(id, r), slot(id).merged);
  }
  /// @pre the rank is in the slot's rank set
  LocalTensor local(SlotId id, Rank r) const;
  /// Where the canonical tensor appears, over all ranks, ascending.
  std::span<const PartId> parts_of(TensorId id) const;
  /// The fragment of this place on this rank; none where the rank is not among the slot's or its
  /// piece is empty.
  std::optional<Fragment> fragment(PartId id, Rank r) const;
  /// The canonical tensor and the box that this place refers to, over all ranks.
  const PlacedBox& part(PartId id) const;
  /// How all places of the tensor store its values; as it is where no rank holds it.
  StoredForm form(TensorId id) const;
  /// True when the layout says that it leaves this tensor out on purpose (mtp=0, say).
  bool omits(TensorId id) const { return !omitted_.empty() && omitted_[id.index()]; }

  /// A digest of the model and of everything above: equal layouts of equal models give equal
  /// digests.
  std::uint64_t digest() const { return digest_; }

 private:
  friend class LayoutBuilder;
  struct LocalPiece;
  LocalPiece local_piece(const Slot& slot, const Section& section, const Dims& coordinates) const;
  std::uint64_t make_digest() const;

  std::string name_;
  std::shared_ptr<const ModelSpec> model_;
  std::vector<Mesh> meshes_;
  std::vector<DimCut> cuts_;
  std::vector<RankSet> rank_sets_;
  std::vector<std::vector<SlotId>> slots_of_set_;
  std::vector<Slot> slots_;
  std::vector<PartId> part_ids_;
  std::vector<std::int64_t> first_part_;
  std::vector<bool> omitted_;  ///< by TensorId; empty: none.
  RankSet ranks_;
  std::uint64_t digest_ = 0;
};

/// Checks one rank's shard map: fragments are disjoint in each local tensor and inside it, what
/// they leave uncovered is declared padding.
Result<> check_shard_map(const ModelLayout& layout, Rank r);

/// Bytes of all local tensors of a rank, padding included.
Index local_bytes(const ModelLayout& layout, Rank r);

}  // namespace reshard
