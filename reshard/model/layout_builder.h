// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reshard/model/model_layout.h"

namespace reshard {

/// Collects the slots of a ModelLayout. Used by the families; one builder makes one layout.
class LayoutBuilder {
 public:
  LayoutBuilder(std::string name, std::shared_ptr<const ModelSpec> model);
  /// With the meshes, cuts and rank sets of another layout, under the same ids, and none of its
  /// slots.
  LayoutBuilder(std::string name, std::shared_ptr<const ModelSpec> model, const ModelLayout& like);

  const ModelSpec& model() const { return *layout_.model_; }
  MeshId add_mesh(Mesh mesh);
  const Mesh& mesh(MeshId id) const { return layout_.meshes_[id.index()]; }
  /// The id of a cut; equal cuts have one id.
  CutId add_cut(const DimCut& cut);
  const DimCut& dim_cut(CutId id) const { return layout_.cuts_[id.index()]; }
  RankSetId add_ranks(RankSet ranks);
  /// The ranks of a mesh whose coordinates on the given axes (index, coordinate) are these.
  RankSetId ranks_where(MeshId id, std::initializer_list<std::pair<int, Index>> fixed);
  /// Adds a slot and returns its id.
  SlotId add(Slot slot);

  /// Says that the layout leaves a tensor out on purpose: a plan towards it does not move it.
  void omit(TensorId id);

  /// Indexes the slots. Errors: a canonical tensor whose values cannot be stored as its slot says;
  /// places of one tensor that store it in different ways.
  Result<ModelLayout> finish() &&;

 private:
  /// @param first the slot of an earlier place of the tensor, or null
  Result<> check_form(const Slot& slot, TensorId id, const Slot* first) const;

  ModelLayout layout_;
  std::unordered_map<std::uint64_t, std::vector<RankSetId>> by_hash_;
  std::unordered_map<std::uint64_t, RankSetId> by_coordinates_;
};

/// A section with one whole canonical tensor in it. `cuts[i]` cuts dimension i; missing ones cut
/// nothing.
Section whole_tensor(const ModelSpec& model, TensorId id, std::initializer_list<CutId> cuts = {});

/// Puts a box of a canonical tensor into a section at `at`; canonical dimension i becomes full
/// dimension first_dim + i.
void place(Section& section, TensorId id, const Box& box, Dims at, int first_dim = 0);

}  // namespace reshard
