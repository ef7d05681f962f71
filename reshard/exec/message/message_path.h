// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "reshard/exec/rank_path.h"

namespace reshard {

/// Over any transport that carries messages: pack, send, receive, unpack. What is one run is sent
/// from and received where it lies; the rest goes through staging memory of at most
/// options.staging_bytes. Does nothing collective. Errors: as message_schedule(); a transport that
/// cannot share memory though it wants it shared.
Result<std::unique_ptr<RankPath>> make_message_path(const RankWork& work);

}  // namespace reshard
