// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/program/converted/converted_rows.h"
#include "reshard/refit/conversion/plan_route.h"

namespace reshard::conversion {

/// The bytes of the target's memory on a rank that a move writes, in runs of equal length; some may
/// be there twice. `unit_bytes`: as in CompileOptions. Errors: those of converted_rows(); sub-byte
/// elements that begin inside a byte. @pre the move writes the target, and not what is between two
/// moves
Result<std::vector<PartRows>> written_bytes(const RoutePlan& move, Rank me, Index unit_bytes);

/// The local tensors of the target on a rank of which refits leave some byte as it is, such as
/// padding or what is not delivered; ascending. `moves`: by TensorId of the values, the canonical
/// tensors that are delivered. Some of them may be written whole nevertheless.
std::vector<SlotId> partly_written(const SessionSide& target, Rank me,
                                   const std::vector<bool>& moves);

}  // namespace reshard::conversion
