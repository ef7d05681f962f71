// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/exec/message/message_schedule.h"

namespace reshard {

/// Steps of one rank that are under way at once, at most. At least two: see message_schedule().
inline constexpr std::size_t kWindow = 16;
/// Size of the ring of staging memory, in steps of the most staged bytes.
inline constexpr Index kRingSteps = 8;

/// Some chunks that follow each other, given to the transport at once.
struct MessageStep {
  std::size_t first = 0, end = 0;  ///< of the schedule's ops.
  std::size_t first_send = 0, end_send = 0, first_recv = 0, end_recv = 0;
  /// Earlier steps that must be over before this one begins: for room in the window, and because it
  /// uses their staging.
  std::size_t after = 0;
  Index staging = 0, staged_bytes = 0;  ///< its part of the staging memory.
  Index bytes = 0, received = 0;
};

/// A schedule made ready to run: nothing is left to compute but when steps are over.
struct MessageSteps {
  std::vector<MessageStep> steps;
  std::vector<Send> sends;
  std::vector<Recv> recvs;
  Index staging_bytes = 0;  ///< wanted by place_in_staging().
};

/// Groups chunks into steps, of at most `most_staged` staged bytes each unless a single one has
/// more, and deals the staging memory out to them as a ring, as little as they can use, of at most
/// eight times `most_staged`.
MessageSteps group_into_steps(const MessageSchedule& schedule, Index most_staged);

/// Writes the addresses of the staging memory into the steps' messages and the schedule's tasks.
void place_in_staging(MessageSteps& steps, MessageSchedule& schedule, std::byte* staging);

}  // namespace reshard
