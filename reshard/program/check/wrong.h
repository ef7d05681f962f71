// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "reshard/base/result.h"
#include "reshard/program/program.h"

namespace reshard::check {

/// Code::corrupt, with the rank of the program and `what` is wrong with it.
tl::unexpected<Error> wrong(const Program& program, std::string_view what);

}  // namespace reshard::check
