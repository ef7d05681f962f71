// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "reshard/index/interval.h"

namespace reshard {

/// Receives the progress of a long operation, in bytes. May be empty. Called by one thread at a
/// time, at most about 20 times a second. Must not call back into the operation. Returning false
/// cancels the operation (Code::aborted).
using Progress = std::function<bool(std::string_view phase, Index done, Index total)>;

}  // namespace reshard
