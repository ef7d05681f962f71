// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace reshard::cli {

/// For tests that change files under a running program: if the environment's RESHARD_TEST_STOP is
/// `point`, stops this process there once, as `kill -STOP` does, until a SIGCONT. The points are
/// those of ConvertHook.
void stop_for_test(std::string_view point);

}  // namespace reshard::cli
