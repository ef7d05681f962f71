// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reshard/model/tensor.h"

namespace reshard {

/// Tensors of one dtype and shape whose names differ only in numbers.
struct TensorKind {
  std::string pattern;  ///< "model.layers.N.mlp.experts.N.up_proj.weight"
  DType dtype = DType::bf16;
  Dims shape;  ///< as stored in a file.
  Index count = 0, bytes = 0;
};

/// The name with every number between dots replaced by N, and those of "weight7", "bias7" and
/// "model1" (grouped experts, virtual stages).
std::string pattern_of(std::string_view name);

/// The kinds of a model in the order of their first tensors.
std::vector<TensorKind> tensor_kinds(const ModelSpec& model);

}  // namespace reshard
