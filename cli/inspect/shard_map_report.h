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

/// One rank's local tensors, as an array of objects: name, dtype, value map unless it is the
/// identity, shape in the module (or the checkpoint's file), `elements` if boxes and offsets count
/// elements of another dtype, elements of padding, and
/// - `cuts`: for each dimension that is cut, the axes of the mesh and the number of parts, which
/// may be one ({"dim": 0, "over": ["tp"], "parts": 4});
/// - `stacked`: if a tensor packs several that are cut separately, the dimension along which they
/// are stacked and the rank's size of each ({"dim": 0, "sizes": [32, 32, 8]});
/// - `fragments`: canonical tensor, box, offset and strides in elements.
/// @pre the rank is in the layout
Json::Array shard_map_json(const ModelLayout& layout, const SlotFiles& files, Rank r);

/// The same as a table: name, dtype, shape, padding and contents.
std::string shard_map_text(const ModelLayout& layout, const SlotFiles& files, Rank r,
                           const Style& style);

}  // namespace reshard::cli
