// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/io/open_model.h"
#include "reshard/model/layout_spec.h"
#include "reshard/model/model_layout.h"
#include "reshard/model/quant/files.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

/// A layout as the command line takes it. Errors: those of parse_layout, and a family that there is
/// not.
Result<LayoutSpec> read_layout_text(const std::string& text);

/// A layout as the command line means it: plain, or quantised.
struct LayoutSide {
  std::shared_ptr<const ModelLayout> values;           ///< as if nothing were quantised.
  std::shared_ptr<const QuantisedLayout> quantised{};  ///< null: plain.
  std::optional<QuantMethod> method{};                 ///< how files of hf hold what is quantised.
  std::optional<QuantMethod> modules{};  ///< by whose names and shapes an engine's modules do.
  std::vector<std::string> notes{};      ///< layout_notes().
  /// What is in memory or in files.
  const std::shared_ptr<const ModelLayout>& stored() const {
    return quantised ? quantised->stored : values;
  }
};

/// Both sides of make_layout(); `quant=FORMAT` chooses the tensors that a checkpoint stores in that
/// format or, where it stores none so, those that the family usually quantises. `grid`: where
/// blocks are counted from if the text leaves it open; none: where the family does.
Result<LayoutSide> make_side(const std::string& text, const Model& model,
                             const std::string& rules_folder = "",
                             std::optional<BlockGrid> grid = {});
/// True for a layout that is quantised and does not say where blocks are counted from.
bool leaves_grid_open(const LayoutSpec& spec);
/// Both sides of own_layout().
Result<LayoutSide> own_side(const Model& model);
/// True when data and scales stored in the one format are right in the other as they are.
bool stored_alike(const QuantFormat& from, const QuantFormat& to);

/// The layout of a model, of what is stored. The file of `rules:FILE`, `dtensor:FILE` or
/// `expert_map=FILE` is looked for in `rules_folder` where its path is relative and the folder is
/// given. Errors: those of the family; a family that needs a config of a model without.
Result<std::shared_ptr<const ModelLayout>> make_layout(const std::string& text, const Model& model,
                                                       const std::string& rules_folder = "");

/// How a checkpoint is cut: "hf", or what its reshard.json says. @pre model.weights
Result<std::shared_ptr<const ModelLayout>> own_layout(const Model& model);

}  // namespace reshard
