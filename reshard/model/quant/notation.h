// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/model/layout_spec.h"
#include "reshard/model/quant/files.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

/// The keys of a layout's notation that say how it is quantised:
///   quant=FORMAT                a name of quant_format_from_name()
///   quant_method=METHOD         of `hf`: how files say so (quant_files.h); of vllm and sglang: by
///                               which method's names and shapes modules hold it; else the format's
///                               usual
///   quant_grid=local|tensor     where block grids begin; else tensor for `hf`, local for others
///   quant_skip=PART+PART...     leaves out canonical tensors that have a PART in their name
struct QuantNotation {
  std::string family, name;  ///< of the layout; its notation with these keys.
  QuantFormat format;
  std::optional<BlockGrid> grid;  ///< as written.
  std::vector<std::string> skip;
  std::optional<QuantMethod> method = {};   ///< as written.
  std::optional<BlockGrid> otherwise = {};  ///< the grid where none is written; none: the family's.

  BlockGrid effective_grid() const {
    const BlockGrid usual = family == "hf" ? BlockGrid::tensor : BlockGrid::local;
    return grid.value_or(otherwise.value_or(usual));
  }
};

/// Takes these keys out of a layout's; none where `quant` is absent. Errors: an unknown format
/// (with those there are); a family that is not hf, megatron, vllm or sglang; quant_grid,
/// quant_skip or quant_method alone; a method with
/// megatron, or one that cannot say the format.
Result<std::optional<QuantNotation>> take_quant(LayoutSpec& spec);

/// The tensors that a family quantises, of those in the model: the weights of linear layers and of
/// experts, [out, in] each. Not embeddings, heads, norms, routers and their gates, convolutions,
/// and, but for megatron, projections of modules for multi-token prediction and in_proj_ba of gated
/// delta nets. Of a model whose experts are one tensor (gpt-oss): in MXFP4 these experts and
/// nothing else, as it is published, and in other formats the linear layers.
std::set<std::string> default_quantised(const ModelSpec& model, const std::string& family,
                                        const QuantFormat& format);

/// The tensors that a checkpoint keeps input first, [experts, in, out]: gpt-oss' experts.
std::set<std::string> input_first_tensors(const ModelSpec& model);

/// How many elements of experts' inner width engines keep on one rank: a block of the format where
/// experts are one tensor that is quantised with blocks along that width (gpt-oss in MXFP4),
/// else 1. `stored` as below. For FamilyInput::expert_block.
Index expert_block(const QuantNotation& notation, const ModelSpec& model,
                   const std::set<std::string>* stored);

/// Quantises a layout as its notation says. `stored` are the tensors to choose from instead of
/// default_quantised(): those that a checkpoint has in this format. Errors: those of
/// quantise_layout(); without quant_grid, what has no kernel: of formats with a byte of scale for
/// each block (MXFP8, MXFP4, NVFP4) columns of a rank that are not whole blocks and, for megatron,
/// rows that are not a multiple of the block; of others, for vllm and sglang, rows of a section
/// that are cut inside a block, or end inside one before the next section begins, and columns that
/// are cut inside a block.
Result<QuantisedLayout> quantised_as(const QuantNotation& notation,
                                     std::shared_ptr<const ModelLayout> values,
                                     const std::set<std::string>* stored = nullptr);

}  // namespace reshard
