// SPDX-License-Identifier: Apache-2.0
// Lists of tensors in JSON files: {"name", "dtype", "shape"} each, in order.
#pragma once

#include <optional>
#include <string_view>

#include "reshard/base/result.h"
#include "reshard/io/files/json.h"
#include "reshard/model/tensor.h"

namespace reshard::checkpoint {

/// Reads a list. Errors name the entry.
Result<ModelSpec> parse_tensor_list(const Json& list);

/// The tensors that a config.json lists beside its keys, as reshard.model_of() writes them under
/// "reshard_tensors"; none if it has no such key. Errors begin with `source`.
Result<std::optional<ModelSpec>> listed_tensors(std::string_view text, std::string_view source);

}  // namespace reshard::checkpoint
