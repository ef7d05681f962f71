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
/// Canonical index c (in `box`) is full index f with f[dims[i]] = at[dims[i]] + (c[i] -
/// box[i].begin()) * (1 + gaps[i]), and f[k] = at[k] for full dimensions k that no canonical
/// dimension maps to. A tensor whose elements are repeated k times in a row is k parts with gaps of
/// k - 1.
struct PlacedBox {
  TensorId tensor;
  Box box;
  Dims at;                                   ///< one entry per dimension of the full tensor.
  std::array<std::int8_t, kMaxDims> dims{};  ///< canonical dimension -> full dimension.
  /// Full indices that are skipped between neighbours along a canonical dimension.
  std::array<std::int16_t, kMaxDims> gaps{};

  Index step(int i) const { return 1 + gaps[static_cast<std::size_t>(i)]; }
  /// The canonical indices along dimension i whose full index is in `full`.
  Interval within(int i, Interval full) const;
};

/// A full tensor composed of canonical boxes, and how ranks cut it. Elements that no part covers
/// are padding.
struct Section {
  Dims extent;
  std::array<CutId, kMaxDims> cuts{};  ///< per full dimension; CutId 0 means uncut.
  std::vector<PlacedBox> parts;        ///< disjoint in the full index space.
};

/// A local tensor that each rank of a set holds: the rank's pieces of the sections, stacked along
/// one dimension and stored row-major.
struct Slot {
  std::string name;  ///< the parameter name in the framework's module on those ranks.
  DType dtype = DType::bf16;
  MeshId mesh;  ///< the mesh whose axes the cuts refer to.
  RankSetId ranks;
  int stack_dim = 0;
  bool padded = false;  ///< some local elements belong to no canonical tensor.
  std::vector<Section> sections = {};
  MergedDims merged = {};  ///< dimensions that the module reports as one.
  /// Applied to the canonical values before they are stored.
  ValueMap map = ValueMap::identity;
  bool casts = false;  ///< canonical tensors of another dtype are rounded to `dtype`.
  /// The rule of a file or card that made it, the first one 1; 0: none. Says where the slot is
  /// from, and is no part of what it is.
  std::int32_t rule = 0;
};

/// One canonical box inside one local tensor of one rank.
struct Fragment {
  TensorId tensor;
  SlotId slot;
  Box box;        ///< of the canonical tensor.
  Strided where;  ///< of the local tensor, in elements.
};

/// A rank's local tensor: its slot, shape and fragments. Elements that no fragment covers are
/// declared padding.
struct LocalTensor {
  SlotId slot;
  Dims shape;
  std::vector<Fragment> fragments;
};

/// Identifies a part of a layout: part `part` of section `section` of a slot. A part spans all
/// ranks; each rank of the slot holds one fragment of it, or nothing.
struct PartId {
  SlotId slot;
  std::int32_t section = 0, part = 0;
};

/// Which rank holds which canonical boxes, and where: the shard map of any rank in closed form.
///
/// Immutable once built; safe to read from any thread. Keeps its ModelSpec alive.
class ModelLayout {
 public:
  const std::string& name() const { return name_; }
  const ModelSpec& model() const { return *model_; }
  const std::shared_ptr<const ModelSpec>& shared_model() const { return model_; }

  /// All ranks of the layout, including those that hold nothing.
  const RankSet& ranks() const { return ranks_; }
  Index num_slots() const { return static_cast<Index>(slots_.size()); }
  const Slot& slot(SlotId id) const { return slots_[id.index()]; }
  const Mesh& mesh(MeshId id) const { return meshes_[id.index()]; }
  const DimCut& dim_cut(CutId id) const { return cuts_[id.index()]; }
  const RankSet& rank_set(RankSetId id) const { return rank_sets_[id.index()]; }

  /// The slots that this rank holds, ascending. Cost: proportional to their number and the number
  /// of rank sets.
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
  /// The parts that belong to a canonical tensor, over all ranks, ascending.
  std::span<const PartId> parts_of(TensorId id) const;
  /// The fragment of a part on this rank; none if the rank does not hold the slot or its piece is
  /// empty.
  std::optional<Fragment> fragment(PartId id, Rank r) const;
  /// The canonical tensor and box of a part.
  const PlacedBox& part(PartId id) const;
  /// The form in which all parts store the tensor's values; the canonical form if no rank holds the
  /// tensor.
  StoredForm form(TensorId id) const;
  /// True if the layout omits this tensor on purpose (with mtp=0, for example).
  bool omits(TensorId id) const { return !omitted_.empty() && omitted_[id.index()]; }

  /// Equal layouts of equal models have equal digests.
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

/// Checks the shard map of one rank: the fragments of each local tensor are disjoint and lie inside
/// it, and elements that they leave uncovered are declared padding.
Result<> check_shard_map(const ModelLayout& layout, Rank r);

/// Bytes of all local tensors of a rank, including padding.
Index local_bytes(const ModelLayout& layout, Rank r);

/// Bytes of a local tensor as it is stored. @pre the rank has the slot
Index bytes_of_local(const ModelLayout& layout, Rank r, SlotId slot);

}  // namespace reshard
