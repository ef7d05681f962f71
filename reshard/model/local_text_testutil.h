// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/model/model_layout.h"

namespace reshard {

/// The contents of a local tensor: its pieces by offset, the shape that the module reports, and the
/// value map and dtype if they deviate: "gate_proj[6,12)x[0,16)@0 up_proj[6,12)x[0,16)@96 of [12,
/// 16]". A piece is named by the last component of the canonical name that is not "weight"; offsets
/// are in elements. "absent" if the rank has no such tensor.
std::string local_text(const ModelLayout& layout, const std::string& name, int rank);

/// The names of the rank's local tensors in order, one per line.
std::string local_names(const ModelLayout& layout, int rank);

/// Fails the running test for each rank with an incorrect shard map, and for each element of a
/// tensor (unless omitted) that no rank holds. For tiny models.
void expect_whole(const ModelLayout& layout);

}  // namespace reshard
