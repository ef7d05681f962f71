// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace reshard::detail {
/// ModelFingerprints the failed condition with its place and aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace reshard::detail

/// Stops the program on a programming error (never on bad input: that is a Result). Always on.
#define RESHARD_CHECK(condition) \
  ((condition) ? void(0) : ::reshard::detail::check_failed(#condition, __FILE__, __LINE__))
