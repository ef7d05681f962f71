// SPDX-License-Identifier: Apache-2.0
#include "reshard/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace reshard::detail {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "reshard: internal error: %s is false at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace reshard::detail
