// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>

#include "reshard/index/interval.h"

namespace reshard {

/// Told now and then how far a long operation is, in bytes. May be empty. Called from one thread at
/// a time, at most about 20 times a second; must not call back into the operation. Returning false
/// cancels it (Code::aborted).
using Progress = std::function<bool(std::string_view phase, Index done, Index total)>;

}  // namespace reshard
