// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "reshard/trace/clock_offset.h"
#include "reshard/trace/events.h"
#include "reshard/transport/transport.h"

namespace reshard::trace {

/// Moves a rank's events to the clock of rank 0.
void align_trace(RankTrace& trace, const ClockOffset& offset);

/// Collective, while no message is in progress. Rank 0 gets the traces of all ranks, on its clock;
/// the others get none. What rank 0 receives is checked as untrusted, and each rank's bytes are
/// limited by TraceRecorder::capacity_of(). Errors: those of the planes; `corrupt` on rank 0.
Result<std::optional<GroupTrace>> gather_trace(const RankTrace& mine,
                                               const std::vector<ClockOffset>& clocks,
                                               Transport& transport, ControlPlane& control,
                                               Deadline deadline);

}  // namespace reshard::trace
