// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/io/checkpoint/index.h"
#include "reshard/model/tensor.h"

/// The canonical tensors of a checkpoint of local tensors. reshard.json lists them in order under
/// "tensors", as {"name", "dtype", "shape"}: a layout is made from them and cannot tell them.
namespace reshard {

/// The text of a reshard.json that lists these tensors.
std::string rank_index_text(const RankIndex& index, const ModelSpec& tensors);

/// Reads the tensors that the reshard.json at `path` lists. Errors name the path and the entry.
Result<ModelSpec> read_rank_index_tensors(const std::string& path);

}  // namespace reshard
