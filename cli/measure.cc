// SPDX-License-Identifier: Apache-2.0
#include "cli/measure.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>

namespace reshard::cli {
namespace {

std::optional<Index> number_in(const std::string& path) {
  std::ifstream file(path);
  Index value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::optional<Index> system_available() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  Index kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

}  // namespace

Index peak_rss_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return Index{usage.ru_maxrss} * 1024;
}

Index available_memory() {
  const auto system = system_available();
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return system.value_or(0);
  // Page cache counts as used there, but gives way.
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  std::string key;
  Index value = 0, cache = 0;
  while (stat >> key >> value)
    if (key == "inactive_file" || key == "active_file") cache += value;
  const Index left = std::max<Index>(0, *limit - *used + cache);
  return system ? std::min(*system, left) : left;
}

int num_threads(int wanted) {
  if (wanted > 0) return wanted;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace reshard::cli
