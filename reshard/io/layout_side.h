// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "reshard/io/make_layout.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/layout_spec.h"
#include "reshard/model/quant/files.h"

namespace reshard {

/// Parses a layout's notation, such as "megatron:tp=4,ep=8", and checks that its family exists.
/// Errors: those of parse_layout() and check_is_one(), an unknown family, a family whose file is
/// missing.
Result<LayoutSpec> read_layout_text(const std::string& text);

/// Errors: text that joins several layouts by " + ".
Result<> check_is_one(const std::string& text);
/// make_side() of one layout. Errors besides: those of check_is_one().
Result<LayoutSide> make_one_side(const std::string& text, const Model& model,
                                 const std::string& rules_folder, std::optional<BlockGrid> grid);

/// Refuses a layout that would change the values of weights that are not read (Model::opaque): by
/// its keys, or by the rules of its file.
Result<> check_values_stay(const LayoutSpec& spec, const Model& model,
                           const RuleSet* rules = nullptr);

/// rules_layout() of a model, whose config's numbers its expressions see. Errors besides: those of
/// check_values_stay(), and of reading the config. @param tensors null: those of the model
Result<ModelLayout> layout_by_rules_of(const LayoutSpec& spec, const Model& model,
                                       const RuleSet& rules,
                                       std::shared_ptr<const ModelSpec> tensors = nullptr);

/// True if the layout is quantised and does not say where blocks are counted from.
bool leaves_grid_open(const LayoutSpec& spec);
/// Which tensors quantised_side() quantises, and the form of their data and scales.
struct SideChoice {
  QuantFormat format;
  std::set<std::string> tensors;  ///< canonical names.
  BlockGrid grid = BlockGrid::tensor;
  std::optional<QuantMethod> method = {};  ///< whose names and shapes data and scales have.
  bool files = false;                      ///< those of its files, not of modules.
};
/// Quantises a layout that no notation describes: traced, or of one's own. Where shards of experts
/// cut FP8 blocks, scales are refined as vLLM's loaders do. Errors: a method that does not support
/// the format; those of quantise_layout().
Result<LayoutSide> quantised_side(std::shared_ptr<const ModelLayout> values,
                                  const SideChoice& choice);
/// own_layout() with both the values and what is stored. Codes of files are decoded, unless
/// `as_codes`; those of ranks are as they are stored. @pre model.weights; model.storage->codes if
/// `as_codes`
Result<LayoutSide> own_side(const Model& model, bool as_codes = false);
/// True if a layout of the model holds codes as they are stored.
bool holds_codes(const Model& model, const ModelLayout& layout);
/// The dtype in which a layout stores most values; none if it stores no floats.
std::optional<DType> usual_dtype(const ModelLayout& values);
/// True if data and scales stored as `from` are also valid as `to`, unchanged.
bool stored_alike(const QuantFormat& from, const QuantFormat& to);

}  // namespace reshard
