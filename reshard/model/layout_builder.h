// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/model/model_layout.h"

namespace reshard {

/// Collects the slots of a ModelLayout. A builder makes one layout.
class LayoutBuilder {
 public:
  LayoutBuilder(std::string name, std::shared_ptr<const ModelSpec> model);
  /// Starts with the meshes, cuts and rank sets of `like`, under the same ids, and without its
  /// slots.
  LayoutBuilder(std::string name, std::shared_ptr<const ModelSpec> model, const ModelLayout& like);

  const ModelSpec& model() const { return *layout_.model_; }
  MeshId add_mesh(Mesh mesh);
  const Mesh& mesh(MeshId id) const { return layout_.meshes_[id.index()]; }
  /// The id of a cut. Equal cuts share an id.
  CutId add_cut(const DimCut& cut);
  const DimCut& dim_cut(CutId id) const { return layout_.cuts_[id.index()]; }
  RankSetId add_ranks(RankSet ranks);
  /// Valid until the next set is added.
  const RankSet& rank_set(RankSetId id) const { return layout_.rank_sets_[id.index()]; }
  /// The ranks of a mesh with the given coordinates; `fixed` lists (axis index, coordinate).
  RankSetId ranks_where(MeshId id, std::span<const std::pair<int, Index>> fixed);
  RankSetId ranks_where(MeshId id, std::initializer_list<std::pair<int, Index>> fixed) {
    return ranks_where(id, std::span(fixed.begin(), fixed.size()));
  }
  /// Adds a slot and returns its id.
  SlotId add(Slot slot);

  /// Adds the meshes and the slots of another layout of the same model, in their order. Ranks
  /// become higher by `shift`. @pre all of them are then from 0 to 2^20 - 1
  void add_all(const ModelLayout& part, Rank::rep shift = 0);

  /// Declares that the layout omits a tensor on purpose: plans towards it do not move the tensor.
  void omit(TensorId id);

  /// Indexes the slots and returns the layout. Errors: a canonical tensor whose values cannot be
  /// stored as its slot requires; parts of one tensor that store it in different forms.
  Result<ModelLayout> finish() &&;

 private:
  /// @param first the slot of an earlier part of the tensor, or null
  Result<> check_form(const Slot& slot, TensorId id, const Slot* first) const;

  ModelLayout layout_;
  std::unordered_map<std::uint64_t, std::vector<RankSetId>> by_hash_;
  std::unordered_map<std::uint64_t, RankSetId> by_coordinates_;
};

/// A section that consists of one whole canonical tensor. `cuts[i]` cuts dimension i; dimensions
/// without an entry are not cut.
Section whole_tensor(const ModelSpec& model, TensorId id, std::initializer_list<CutId> cuts = {});

/// Adds a box of a canonical tensor to a section, at full index `at`; canonical dimension i becomes
/// full dimension first_dim + i.
void place(Section& section, TensorId id, const Box& box, Dims at, int first_dim = 0);

}  // namespace reshard
