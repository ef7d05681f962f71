// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "cli/model_source.h"
#include "reshard/model/layout_spec.h"
#include "reshard/model/model_layout.h"

namespace reshard::cli {

/// A layout as the command line takes it. Errors: those of parse_layout, and a family that there is
/// not.
Result<LayoutSpec> read_layout_text(const std::string& text);

/// The layout of a model. The file of `rules:FILE`, `dtensor:FILE` or `expert_map=FILE` is looked
/// for in `rules_folder` where its path is relative and the folder is given. Errors: those of the
/// family; a family that needs a config of a model without.
Result<std::shared_ptr<const ModelLayout>> make_layout(const std::string& text, const Model& model,
                                                       const std::string& rules_folder = "");

/// How a checkpoint is cut: "hf", or what its reshard.json says. @pre model.weights
Result<std::shared_ptr<const ModelLayout>> own_layout(const Model& model);

}  // namespace reshard::cli
