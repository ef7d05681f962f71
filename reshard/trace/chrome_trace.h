// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/trace/events.h"

namespace reshard::trace {

/// A trace in the JSON of Chrome's trace event format, which Perfetto opens: a process for each
/// rank; a thread for each worker, for the phases of the session, and for the messages to and from
/// each peer; arrows from where a message is sent to where it is received. docs/trace.md says what
/// each slice has. Valid JSON in ASCII whatever the names are. The same trace gives the same text.
std::string chrome_trace(const GroupTrace& trace);

}  // namespace reshard::trace
