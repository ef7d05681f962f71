// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/checkpoint/pieces.h"
#include "reshard/model/config.h"
#include "reshard/model/model_layout.h"

/// Checkpoints of Megatron-Core's dist_checkpointing ("torch_dist"): their tensors are the whole
/// parameters of Megatron's modules, those of all layers or experts stacked under one name
/// (decoder.layers.mlp.linear_fc2.weight [layers, out, in]) or each under its own.
namespace reshard::torch_dist {

/// The parameter by which Megatron's names are known.
inline constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight";

/// True if the names are Megatron's.
bool is_megatron(const TensorPieces& content);

/// Two tensors of a checkpoint of which one should be rows of the other, or all of it.
struct SecondName {
  std::string part, whole;
  Dims at;  ///< where the part begins; empty if both are one tensor.
};

/// A tensor of a checkpoint that the model does not use, or not all of.
struct Leftover {
  std::string name;
  /// The equalities that make it only a second form of tensors that are used; empty if it is none.
  std::vector<SecondName> second;
  /// The place in the leading dimensions of the first entry that no parameter is; empty if the
  /// model uses nothing of the tensor.
  Dims unused;
};

/// A checkpoint that Megatron wrote, as a model.
struct MegatronCheckpoint {
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const ModelLayout> layout;  ///< one rank that holds all pieces.
  std::vector<Leftover> leftovers;            ///< in the order of the checkpoint.
};

/// Finds the model's tensors in the pieces by the layout `megatron` of one rank, whose local
/// tensors are the parameters that Megatron stores. The model's dtypes are those of the checkpoint.
/// Errors: those of the family and of check_parameters(); a parameter that the checkpoint lacks, or
/// has in another shape or in two dtypes.
/// @pre is_megatron(weights.pieces())
Result<MegatronCheckpoint> megatron_checkpoint(const Checkpoint& weights,
                                               const ModelConfig& config);

}  // namespace reshard::torch_dist
