// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/model/tensor.h"

namespace reshard::cli {

/// Tensors of one dtype and shape whose names differ in numbers only.
struct TensorKind {
  std::string pattern;  ///< "model.layers.N.mlp.experts.N.up_proj.weight"
  DType dtype = DType::bf16;
  Dims shape;
  Index count = 0, bytes = 0;
};

/// The kinds of a model in the order of their first tensors.
std::vector<TensorKind> tensor_kinds(const ModelSpec& model);

}  // namespace reshard::cli
