// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "reshard/trace/events.h"

namespace reshard::trace {

/// The two sides of one message.
struct MessagePair {
  Rank from, to;
  const TraceEvent* sent = nullptr;
  const TraceEvent* received = nullptr;
};

/// The messages of which a trace has both sides, by sender, receiver, run and id. Borrows the
/// events. Cost: messages, sorted.
std::vector<MessagePair> message_pairs(const GroupTrace& trace);

}  // namespace reshard::trace
