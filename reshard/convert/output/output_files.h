// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/files/output_dir.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/model_layout.h"

namespace reshard::output {

/// One file to write; it holds local tensors of one rank.
struct OutputFile {
  std::string name;
  Rank rank;
  std::vector<SlotId> slots = {};        ///< in the order of the layout.
  std::vector<TensorSpec> tensors = {};  ///< one per slot, then one per element of `packed_shapes`.
  std::vector<std::array<std::int64_t, 2>> packed_shapes = {};  ///< SlotFiles::packed_shape().
  Index tensor_bytes = 0;                                       ///< without the header.
  Index file_bytes = 0;                                         ///< with it.
  StringMap metadata = {
      {"format", "pt"}};  ///< of the file; loaders of `transformers` require this.
};

/// The files of a layout.
struct OutputFiles {
  std::vector<OutputFile> files;
  std::vector<std::string> of_rank;  ///< the file of each rank, from rank 0.
  /// `.distcp` files of torch.distributed.checkpoint, described by `.metadata`; else safetensors.
  bool dcp = false;

  Index file_bytes() const;
  Index tensor_bytes() const;
};

/// Files as Hugging Face names them: model.safetensors, or numbered files with at most
/// `max_shard_bytes` of tensors each (a larger tensor has its own file), every file from one rank.
/// `max_shard_bytes` 0: one file per rank. Ranks without tensors get no file.
Result<OutputFiles> hf_output_files(const LayoutSide& side, Index max_shard_bytes);

/// One file per rank; ranks with identical local tensors share the file of the first.
Result<OutputFiles> rank_output_files(const LayoutSide& side);

/// One file per rank, of the pieces that it holds, in the format `.distcp` or as safetensors with
/// DCP_SHARDING_INFO; a replicated tensor is the first rank's. Errors: a local tensor that is not
/// one box of a tensor, unless LayoutSide::pieces says what it is; those of plan_dcp_file() and
/// plan_safetensors().
Result<OutputFiles> dcp_output_files(const LayoutSide& side, bool safetensors);

/// Writes the `.metadata` of these files and, for the family torch_dist, what Megatron's
/// dist_checkpointing reads beside it. @pre `files` are dcp_output_files() of the side, and
/// `.distcp`
Result<> write_dcp_metadata(const LayoutSide& side, const OutputFiles& files, OutputDir& folder);

/// The text of model.safetensors.index.json. @pre more than one file
std::string hf_index_of(const OutputFiles& files);

}  // namespace reshard::output
