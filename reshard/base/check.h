// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace reshard::detail {
/// Prints the failed condition and its location, and aborts.
[[noreturn]] void check_failed(const char* condition, const char* file, int line);
}  // namespace reshard::detail

/// Aborts the program on a programming error, in all builds. Errors in input are Results instead.
#define RESHARD_CHECK(condition) \
  ((condition) ? void(0) : ::reshard::detail::check_failed(#condition, __FILE__, __LINE__))
