// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/io/open_model.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/layout_spec.h"
#include "reshard/model/model_layout.h"
#include "reshard/model/quant/files.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

struct TracedLayout;

/// Parses a layout's notation, such as "megatron:tp=4,ep=8", and checks that its family exists.
/// Errors: those of parse_layout(), an unknown family, a family whose file is missing.
Result<LayoutSpec> read_layout_text(const std::string& text);

/// Refuses a layout that would change the values of weights that are not read (Model::opaque): by
/// its keys, or by the rules of its file.
Result<> check_values_stay(const LayoutSpec& spec, const Model& model,
                           const RuleSet* rules = nullptr);

/// rules_layout() of a model, whose config's numbers its expressions see. Errors besides: those of
/// check_values_stay(), and of reading the config. @param tensors null: those of the model
Result<ModelLayout> layout_by_rules_of(const LayoutSpec& spec, const Model& model,
                                       const RuleSet& rules,
                                       std::shared_ptr<const ModelSpec> tensors = nullptr);

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
/// not; none: the family's default.
Result<LayoutSide> make_side(const std::string& text, const Model& model,
                             const std::string& rules_folder = "",
                             std::optional<BlockGrid> grid = {});
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
/// `as_codes`; those of ranks are as they are stored. @pre model.weights; model.codes if `as_codes`
Result<LayoutSide> own_side(const Model& model, bool as_codes = false);
/// True if a layout of the model holds codes as they are stored.
bool holds_codes(const Model& model, const ModelLayout& layout);
/// The dtype in which a layout stores most values; none if it stores no floats.
std::optional<DType> usual_dtype(const ModelLayout& values);
/// True if data and scales stored as `from` are also valid as `to`, unchanged.
bool stored_alike(const QuantFormat& from, const QuantFormat& to);

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
