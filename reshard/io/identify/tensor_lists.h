// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/io/open_model.h"
#include "reshard/model/quant/codes.h"

namespace reshard::identify {

/// All tensors of the files, in their order. @pre checkpoint.kind() != Checkpoint::Kind::ranks
Result<ModelSpec> stored_tensors(const Checkpoint& checkpoint);

/// A copy without these tensors.
ModelSpec without(const ModelSpec& spec, const std::vector<std::string>& names);

/// True for the tables of rotary embeddings that early transformers stored in every layer.
bool is_stray_buffer(std::string_view name);

bool matches_any(const std::set<std::string>& patterns, std::string_view name);

/// The two integers of a tensor that says a shape; none if it is no pair of I32 or I64.
std::optional<std::array<std::int64_t, 2>> stored_sizes(const Checkpoint& checkpoint,
                                                        const CheckpointTensor& t);

/// Removes from `stored` the tensors that the config lacks and that may be left out.
void leave_out_strays(const ModelSpec& config, ModelSpec& stored, Model& model);

/// Removes the tensors to ignore from a model without a config.
void leave_out_ignored(Model& model);

/// Reports tensors that may be weights and are none of the model's. Objects are no tensors, and
/// nobody misses an optimizer's state or a copy.
void leave_out_others(Model& model);

/// The tensors in the order of the config, with the dtypes of the checkpoint. @pre check_against
/// succeeded
ModelSpec in_order_of(const ModelSpec& config, const ModelSpec& checkpoint);

}  // namespace reshard::identify
