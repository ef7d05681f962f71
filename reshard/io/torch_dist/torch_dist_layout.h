// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/io/checkpoint/pieces.h"
#include "reshard/model/families.h"
#include "reshard/model/model_layout.h"

namespace reshard::torch_dist {

/// A checkpoint of Megatron-Core's dist_checkpointing to write.
struct TorchDist {
  /// A rank for each file, with a slot for each of the file's pieces.
  std::shared_ptr<const ModelLayout> layout;
  /// The pieces, named as these slots, and the objects that Megatron's modules ask for.
  std::shared_ptr<const TensorPieces> content;
};

/// The family torch_dist: the whole parameters of the layout `megatron` of one rank, under the
/// names of dist_checkpointing; a norm is stored under both of its names, Transformer Engine's and
/// that of the local modules. Matrices are cut by rows over `shard` ranks, experts are dealt to
/// them one by one, and all else is the first rank's. Keys: shard (1), layers (auto: stacked if
/// those of the decoder are alike and have no mixers, else single), and of `megatron`: dtype,
/// gamma, mtp, vocab_multiple. Errors: those of the family megatron; layers that cannot be stacked.
/// @pre input.config
Result<TorchDist> torch_dist_layout(const LayoutSpec& spec, const FamilyInput& input);

}  // namespace reshard::torch_dist
