// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/io/checkpoint/index.h"
#include "reshard/model/tensor.h"

/// The canonical tensors of a checkpoint in ranks: reshard.json lists them under "tensors", in
/// their order, as
/// {"name", "dtype", "shape"}. The layout alone would not tell them: it is made of them.
namespace reshard {

/// The text of a reshard.json with its tensors.
std::string rank_index_text(const RankIndex& index, const ModelSpec& tensors);

/// The tensors that the reshard.json at `path` lists. Errors name the path and what is wrong with
/// which entry.
Result<ModelSpec> read_rank_index_tensors(const std::string& path);

}  // namespace reshard
