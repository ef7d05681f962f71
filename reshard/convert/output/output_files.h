// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/model_layout.h"

namespace reshard::output {

/// One safetensors file to write; it holds local tensors of one rank.
struct OutputFile {
  std::string name;
  Rank rank;
  std::vector<SlotId> slots;        ///< in the order of the layout.
  std::vector<TensorSpec> tensors;  ///< one per slot.
  Index tensor_bytes = 0;           ///< without the header.
  Index file_bytes = 0;             ///< with it.
};

/// The files of a layout.
struct OutputFiles {
  std::vector<OutputFile> files;
  std::vector<std::string> of_rank;  ///< the file of each rank, from rank 0.
  bool dcp = false;  ///< `.distcp` files of torch.distributed.checkpoint, not safetensors.

  Index file_bytes() const;
  Index tensor_bytes() const;
};

/// The metadata that loaders of `transformers` require in each file.
const StringMap& file_metadata();

/// Files as Hugging Face names them: model.safetensors, or numbered files with at most
/// `max_shard_bytes` of tensors each (a larger tensor has its own file), every file from one rank.
/// `max_shard_bytes` 0: one file per rank. Ranks without tensors get no file.
Result<OutputFiles> hf_output_files(const LayoutSide& side, Index max_shard_bytes);

/// One file per rank; ranks with identical local tensors share the file of the first.
Result<OutputFiles> rank_output_files(const LayoutSide& side);

/// One `.distcp` file per rank, of the pieces that it holds; a replicated tensor is the first
/// rank's. Errors: a local tensor that is not one box of a tensor; those of plan_dcp_file().
Result<OutputFiles> dcp_output_files(const LayoutSide& side);

/// The bytes of `.metadata`. @pre `files` are dcp_output_files() of the layout
Result<std::string> dcp_metadata_of(const ModelLayout& layout, const OutputFiles& files);

/// The text of model.safetensors.index.json. @pre more than one file
std::string hf_index_of(const OutputFiles& files);

}  // namespace reshard::output
