// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/message/message_schedule.h"

namespace reshard::message {

/// The most steps of one rank in progress at once. At least two: see message_schedule().
inline constexpr std::size_t kWindow = 16;
/// Size of the ring of staging memory, in steps of the largest size.
inline constexpr Index kRingSteps = 8;

/// Consecutive chunks that are passed to the transport in one exchange().
struct MessageStep {
  std::size_t first = 0, end = 0;  ///< range of the schedule's ops.
  std::size_t first_send = 0, end_send = 0, first_recv = 0, end_recv = 0;
  /// Number of leading steps that must be complete before this one begins: it needs room in the
  /// window and their staging.
  std::size_t after = 0;
  Index staging = 0, staged_bytes = 0;  ///< offset and size of its part of the staging memory.
  Index bytes = 0, received = 0;
};

/// A schedule that is ready to run.
struct MessageSteps {
  std::vector<MessageStep> steps;
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  Index staging_bytes = 0;  ///< that place_in_staging() needs.
};

/// Groups chunks into steps of at most `most_staged` staged bytes each (unless a single chunk has
/// more), and assigns the staging memory to them as a ring: no larger than they can use, and at
/// most eight times `most_staged`.
MessageSteps group_into_steps(const MessageSchedule& schedule, Index most_staged);

/// Writes the addresses of the staging memory into the steps' messages and the schedule's tasks.
void place_in_staging(MessageSteps& steps, MessageSchedule& schedule, std::byte* staging);

}  // namespace reshard::message
