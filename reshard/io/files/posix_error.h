// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "reshard/base/result.h"

namespace reshard::files {

/// "PATH: cannot ACTION: CAUSE", with the cause of `error_number` and a remedy if one is known.
/// Code::not_found for a missing file or folder, else Code::io.
tl::unexpected<Error> posix_fail(std::string_view path, std::string_view action, int error_number);

}  // namespace reshard::files
