// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/table.h"
#include "reshard/convert/slot_files.h"
#include "reshard/io/files/json.h"
#include "reshard/model/model_layout.h"

namespace reshard::cli {

/// [2, 3, 4]
Json shape_json(const Dims& shape);

/// One rank's local tensors, as an array of objects: name, dtype, value map where it is not the
/// identity, shape as the module (or the checkpoint's file) has it, `elements` where boxes and
/// offsets count others than those of that dtype, elements of padding, and
/// - `cuts`: for each dimension that is cut, over which axes of the mesh and into how many parts, a
///   part of one included ({"dim": 0, "over": ["tp"], "parts": 4});
/// - `stacked`: where a tensor packs several that are cut each by itself, the dimension along which
///   they lie one behind the other and the rank's size of each ({"dim": 0, "sizes": [32, 32, 8]});
/// - `fragments`: canonical tensor, box, offset and strides in elements.
/// @pre the rank is in the layout
Json::Array shard_map_json(const ModelLayout& layout, const SlotFiles& files, Rank r);

/// The same as a table: name, dtype, shape, padding and what it holds.
std::string shard_map_text(const ModelLayout& layout, const SlotFiles& files, Rank r,
                           const Style& style);

}  // namespace reshard::cli
