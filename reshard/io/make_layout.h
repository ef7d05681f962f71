// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/open_model.h"
#include "reshard/model/model_layout.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

struct TensorPieces;
struct TracedLayout;

/// One side of a plan: a plain or a quantised layout.
struct LayoutSide {
  std::shared_ptr<const ModelLayout> values;           ///< the layout of the dequantised values.
  std::shared_ptr<const QuantisedLayout> quantised{};  ///< null for a plain layout.
  std::optional<QuantMethod> method{};                 ///< family hf: the files' quant_method.
  std::optional<QuantMethod> modules{};  ///< other families: whose modules' names and shapes.
  std::vector<std::string> notes{};      ///< layout_notes().
  /// Family torch_dist: the piece of a tensor that each slot is, by its name, and further entries.
  std::shared_ptr<const TensorPieces> pieces{};
  /// Family traced: the layout file, and the notation that reads it without the engine.
  std::shared_ptr<const TracedLayout> traced{};
  bool by_card = false;  ///< a layout card says `values`, which knows nothing of quantisation.
  /// Patterns of Model::ignore that name tensors which a card asks for and the model does not have.
  std::set<std::string> lacked{};
  /// `values` holds codes, scales and zero points as they are stored, over ModelCodes::tensors.
  bool as_codes = false;
  /// The layout of the tensors that are in memory or in files.
  const std::shared_ptr<const ModelLayout>& stored() const {
    return quantised ? quantised->stored : values;
  }
};

/// make_layout() with both the values and what is stored. `quant=FORMAT` quantises the tensors that
/// the model's checkpoint stores in that format or, if there are none, those that the family
/// usually quantises. `quant=awq`, `gptq` and `compressed-tensors` are for models that are stored
/// so, whose codes move as they are. `grid` says where blocks are counted from if the text does
/// not; none: the family's default. Layouts of disjoint ranks may be joined by " + "
/// (join_layouts()); all of them must be plain.
Result<LayoutSide> make_side(const std::string& text, const Model& model,
                             const std::string& rules_folder = "",
                             std::optional<BlockGrid> grid = {});
/// Makes a model's layout from its notation, such as "vllm:tp=8,offset=16" (docs/layouts.md). For a
/// quantised layout this is the layout of what is stored: data and scales.
///
/// A relative path in `rules:FILE`, `dtensor:FILE`, `explicit:FILE` or `expert_map=FILE` is
/// resolved in `rules_folder` if that is not empty. `traced:ENGINE` starts a process
/// (traced_layout.h). Errors: those of the family; a family that needs a config, for a model
/// without one.
Result<std::shared_ptr<const ModelLayout>> make_layout(const std::string& text, const Model& model,
                                                       const std::string& rules_folder = "");

/// The layout that a checkpoint is stored in: "hf", or the one in its reshard.json.
/// @pre model.weights
Result<std::shared_ptr<const ModelLayout>> own_layout(const Model& model);

}  // namespace reshard
