// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace reshard::cli {

/// For tests of what happens to files under a running program: where the environment's
/// RESHARD_TEST_STOP is `point`, this process stops there once, as by `kill -STOP`, until somebody
/// sends SIGCONT. The points: "start", the input is open and nothing of it read; "piece", the first
/// piece of output is written; "file", the first file of it is finished; "files", all are; "end",
/// it is about to get its name.
void stop_for_test(std::string_view point);

}  // namespace reshard::cli
