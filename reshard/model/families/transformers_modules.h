// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reshard/model/config.h"
#include "reshard/model/layout_spec.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// A tensor as a module of transformers holds it: a tensor of the checkpoint, or all experts of a
/// layer stacked.
struct ModuleTensor {
  std::string name;
  TensorId tensor;                              ///< the tensor, or the first of the stack.
  std::optional<Section> stack = std::nullopt;  ///< the whole stack, uncut.

  /// The shape in a file.
  Dims stored_shape(const ModelSpec& model) const {
    return stack ? stack->extent : model[tensor].stored_shape();
  }
};

/// The newest known major release of transformers, and the default.
inline constexpr int kNewestTransformers = 5;
/// The release whose modules hold the tensors of published checkpoints one by one.
inline constexpr int kCheckpointNames = 4;

/// The key transformers, 4 or 5; none if absent. Errors: any other value.
Result<std::optional<int>> transformers_release(const LayoutSpec& spec);

/// The model's tensors as the modules of transformers 4 or 5 hold them, in the order of the model.
/// In 4 they are the tensors of the checkpoint. In 5 the routed experts of a layer are two tensors
/// (conversion_mapping.py, 5.23): experts.gate_up_proj [E, 2I, H], gates first (or, without gates,
/// experts.up_proj [E, I, H]), and experts.down_proj [E, H, I]; Mixtral's block_sparse_moe is named
/// mlp, and Nemotron-H's backbone is named model.
///
/// Experts that are incomplete or differ in shape or dtype stay single; experts that the checkpoint
/// already stacks (gpt-oss) stay as they are. `config` may be null.
std::vector<ModuleTensor> transformers_modules(const ModelSpec& model, const ModelConfig* config,
                                               int major);

/// The name that modules of transformers 5 give a tensor of the checkpoint that they do not stack.
std::string module_name(const ModelConfig& config, const std::string& name);

}  // namespace reshard
