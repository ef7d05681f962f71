// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "reshard/model/families/rules.h"
#include "reshard/model/layout_builder.h"

namespace reshard::families {

/// The place of a layer in a pipeline: a stage, a chunk of it (a virtual stage), and the layer's
/// number within the chunk.
struct LayerPlace {
  Index stage = 0, chunk = 0, number = 0;
};

/// The place of layer `layer` of `layers`. Errors: layers that the stages cannot share.
using LayerPlaces = std::function<Result<LayerPlace>(Index layer, Index layers)>;

/// Places the local tensors of a rules file: on which mesh, on which ranks, under which numbers.
class RulePlaces {
 public:
  /// The meshes that axes lie in, by name, over the same ranks.
  struct NamedMesh {
    std::string name;
    MeshId id;
  };
  struct Place {
    MeshId mesh;
    RankSetId ranks;
    std::vector<std::string> numbers;  ///< what wildcards of the rule's name stand for.
    std::string front;                 ///< of the name: "model1." in the second virtual stage.
  };

  /// Borrows the builder and `numbers` (of the axes, keys and the config).
  RulePlaces(LayoutBuilder& builder, const Expression::Lookup& numbers)
      : b_(builder), numbers_(numbers) {}

  void add(std::string name, MeshId id) { meshes_.push_back({std::move(name), id}); }
  /// Has layers of the axis "pp" share `chunks` virtual stages of each stage as `places` says, in
  /// the place of the rests of the rules.
  void share_stages(LayerPlaces places, Index chunks) {
    layers_ = std::move(places);
    chunks_ = chunks;
  }

  /// The place of the local tensor that a rule makes of tensors whose names' wildcards matched
  /// `groups`. Errors: an axis that no mesh has, axes of several; a coordinate outside its axis.
  Result<Place> place(const Rule& rule, const std::vector<std::string>& groups);

 private:
  Result<MeshId> mesh_of(const Rule& rule) const;
  static Result<Index> number_in(const Rule::Where& where, const std::vector<std::string>& groups);
  /// The coordinate that an entry fixes, and the number that its wildcard then stands for.
  Result<LayerPlace> coordinate(const Rule::Where& where, Index size,
                                const std::vector<std::string>& groups) const;
  Result<LayerPlace> layer(const Rule::Where& where, Index number, Index size) const;

  LayoutBuilder& b_;
  const Expression::Lookup& numbers_;
  std::vector<NamedMesh> meshes_;
  LayerPlaces layers_;
  Index chunks_ = 1;
};

}  // namespace reshard::families
