// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/io/open_model.h"

namespace reshard::identify {

/// Enters into model.storage->merged the weights that LoRA adapters change or replace, and keeps
/// the adapters' files open in model.storage->adapters. Their factors belong to the tensors of
/// these names, or of the names with or without a leading "model.".
///
/// @param folders as PEFT writes them; their changes are added in this order
///
/// Errors, which name folder and tensor: those of reading the files and of parse_peft_config();
/// Code::unsupported for weights that are not in Hugging Face's layout, that are quantised in a
/// form that is also written, stacked, stored twice, or tied to the LM head, or of another dtype
/// than F32, BF16 and F16, and for parts of adapters that are more than A and B;
/// Code::invalid_argument for a tensor that the model lacks, shapes that do not fit, a factor
/// without the other, two adapters that replace one tensor. @pre model.weights
Result<> merge_adapters(const std::vector<std::string>& folders, Model& model);

}  // namespace reshard::identify
