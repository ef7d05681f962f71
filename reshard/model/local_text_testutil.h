// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/model/model_layout.h"

namespace reshard {

/// What a rank's local tensor of this name holds: its pieces by offset, the shape that the module
/// reports, and the value map and dtype where they are not plain:
/// "gate_proj[6,12)x[0,16)@0 up_proj[6,12)x[0,16)@96 of [12, 16]". A piece is named by the last
/// part of the canonical name that is not "weight"; the offset is in elements. "absent" without
/// one.
std::string local_text(const ModelLayout& layout, const std::string& name, int rank);

/// The rank's local tensors, in order, one name a line.
std::string local_names(const ModelLayout& layout, int rank);

/// Fails the running test for each rank whose shard map is wrong, and for each canonical element
/// that no rank holds although the layout does not omit its tensor. For tiny models.
void expect_whole(const ModelLayout& layout);

}  // namespace reshard
