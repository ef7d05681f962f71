// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/exec/rank_path.h"

namespace reshard::message {

/// The path over any transport that carries messages: pack, send, receive, unpack. A single run is
/// sent and received in place; everything else goes through staging memory of at most
/// options.staging_bytes. Not collective. Errors: those of message_schedule(); those of
/// Transport::share() on a transport that registers memory.
Result<std::unique_ptr<RankPath>> make_message_path(const RankWork& work);

}  // namespace reshard::message
