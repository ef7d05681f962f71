// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reshard/model/layout_spec.h"
#include "reshard/model/quant/files.h"
#include "reshard/model/quant/quantised_layout.h"

namespace reshard {

/// The keys of a layout's notation that describe its quantisation:
///   quant=FORMAT              a name of quant_format_from_name(); `stored`: each tensor as the
///                             checkpoint has it, without the other keys
///   quant_method=METHOD       hf: the method of the files (files.h); vllm, sglang and explicit:
///   the
///                             method whose names and shapes modules use; default: that of the
///                             format
///   quant_grid=local|tensor   where block grids begin; default: tensor for hf, otherwise local
///   quant_skip=PART+PART...   skips canonical tensors whose names contain a PART; some name must
struct QuantNotation {
  std::string family, name;       ///< of the layout: its family, its notation with these keys.
  QuantFormat format;             ///< of `stored` none, until the caller sets it.
  std::optional<BlockGrid> grid;  ///< as given.
  std::vector<std::string> skip;
  std::optional<QuantMethod> method = {};          ///< as given.
  std::optional<BlockGrid> otherwise = {};         ///< the default grid; none: that of the family.
  bool as_stored = false;                          ///< quant=stored.
  std::map<std::string, QuantFormat> others = {};  ///< as QuantChoice's, of `stored`.

  BlockGrid effective_grid() const {
    const BlockGrid usual = family == "hf" ? BlockGrid::tensor : BlockGrid::local;
    return grid.value_or(otherwise.value_or(usual));
  }
};

/// Removes these keys from a layout's and returns them; none if `quant` is absent. Errors: an
/// unknown format (the known ones are named); a family other than hf, megatron, vllm, sglang and
/// explicit; integers with megatron; quant_grid, quant_skip or quant_method without quant;
/// quant_method with megatron, or a method that does not support the format.
Result<std::optional<QuantNotation>> take_quant(LayoutSpec& spec);

/// The tensors of the model that a family quantises by default: the weights of linear layers and
/// experts, [out, in] each. Excluded are embeddings, heads, norms, routers and their gates,
/// convolutions and, except for megatron, projections of modules for multi-token prediction and
/// in_proj_ba of gated delta nets. For models whose experts are one tensor (gpt-oss): in MXFP4 only
/// these experts, as published; in other formats only the linear layers.
std::set<std::string> default_quantised(const ModelSpec& model, const std::string& family,
                                        const QuantFormat& format);

/// The tensors that a checkpoint stores input first, [experts, in, out] (experts of gpt-oss).
std::set<std::string> input_first_tensors(const ModelSpec& model);

/// FamilyInput::expert_block for this notation: the block size of the format if experts are one
/// tensor that is quantised in blocks along their inner width (gpt-oss in MXFP4), otherwise 1.
/// `stored`: see quantised_as.
Index expert_block(const QuantNotation& notation, const ModelSpec& model,
                   const std::set<std::string>* stored);

/// Quantises a layout as its notation says. `stored`: the tensors that a checkpoint has in this
/// format, used instead of default_quantised(). Errors: those of quantise_layout(); a PART of
/// quant_skip that no name contains; experts in one tensor as packed integers. Without
/// quant_grid also shapes that no kernel supports: for formats with one byte of scale per block
/// (MXFP8, MXFP4, NVFP4), columns of a rank that are not whole blocks and, for megatron, rows that
/// are not a multiple of the block; for other formats with vllm and sglang, rows of a section that
/// are cut inside a block or end inside one before the next section begins, and columns that are
/// cut inside a block.
Result<QuantisedLayout> quantised_as(const QuantNotation& notation,
                                     std::shared_ptr<const ModelLayout> values,
                                     const std::set<std::string>* stored = nullptr);

}  // namespace reshard
