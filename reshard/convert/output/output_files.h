// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/make_layout.h"
#include "reshard/model/model_layout.h"

namespace reshard::output {

/// One safetensors file to write: local tensors of one rank.
struct OutputFile {
  std::string name;
  Rank rank;
  std::vector<SlotId> slots;        ///< in the order of the layout.
  std::vector<TensorSpec> tensors;  ///< one per slot.
  Index tensor_bytes = 0;           ///< without the header.
  Index file_bytes = 0;             ///< with it.
};

/// The files that a layout is written to.
struct OutputFiles {
  std::vector<OutputFile> files;
  std::vector<std::string> of_rank;  ///< the file of each rank, from rank 0.

  Index file_bytes() const;
  Index tensor_bytes() const;
};

/// The mark that loaders of `transformers` want in each file.
const StringMap& file_metadata();

/// A checkpoint as Hugging Face writes it: model.safetensors, or numbered files of at most
/// `max_shard_bytes` of tensors (a larger tensor has a file of its own) that each hold tensors of
/// one rank only; `max_shard_bytes` 0: one per rank. Ranks without tensors get no file.
Result<OutputFiles> hf_output_files(const LayoutSide& side, Index max_shard_bytes);

/// One file per rank; ranks that hold the same boxes in the same places share the first one's.
Result<OutputFiles> rank_output_files(const LayoutSide& side);

/// The model.safetensors.index.json of the files. @pre more than one
std::string hf_index_of(const OutputFiles& files);

}  // namespace reshard::output
