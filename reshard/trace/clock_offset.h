// SPDX-License-Identifier: Apache-2.0
// Clocks of ranks are compared without one-way times: a barrier returns on no rank before every
// rank has called it. So if rank 0 called at a (its clock) and another rank's call returned at b
// (its own clock), that rank's clock needs at least a - b added to become rank 0's; and if it
// called at a' and rank 0's call returned at b', at most b' - a'. Several barriers narrow the
// interval; its middle is the offset, and half of its width bounds the error.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reshard/base/result.h"
#include "reshard/trace/events.h"
#include "reshard/transport/control.h"

namespace reshard::trace {

/// The call and return times of one barrier on one rank. Nanoseconds on its own clock.
struct ClockRound {
  std::int64_t called_ns = 0, returned_ns = 0;
};

/// The offset that turns a rank's clock into rank 0's. The truth is at most error_ns away, except
/// that clocks of different hosts drift: usually less than 50 microseconds a second between the
/// barriers and the event.
struct ClockOffset {
  std::int64_t offset_ns = 0, error_ns = 0;
};

/// From the same rounds on both ranks. The offset is 0 without rounds. Times of at most 2^61 ns.
ClockOffset clock_offset(std::span<const ClockRound> rank_0, std::span<const ClockRound> other);

/// Collective. The offsets of all ranks' clocks, by rank; identical on all ranks. Costs 16 barriers
/// and one gathering. `clock` is this rank's. Errors: the control plane's; `corrupt` if a rank
/// sends something else (named).
Result<std::vector<ClockOffset>> align_clocks(
    ControlPlane& control, Deadline deadline,
    const std::function<std::int64_t()>& clock = trace_now_ns);

}  // namespace reshard::trace
