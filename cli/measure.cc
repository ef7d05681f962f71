// SPDX-License-Identifier: Apache-2.0
#include "cli/measure.h"

#include <sys/resource.h>

#include <cstdio>

#include "reshard/memory/worker_pool.h"

namespace reshard::cli {

Index peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return Index{usage.ru_maxrss} * 1024;
}

int num_threads(int wanted) { return wanted > 0 ? wanted : usable_cores(); }

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace reshard::cli
