// SPDX-License-Identifier: Apache-2.0
#include "reshard/memory/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

namespace reshard {
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

Index available_memory() {
  const auto system = system_available();
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return system.value_or(0);
  // The control group counts page cache as used, but the kernel reclaims it.
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  std::string key;
  Index value = 0, cache = 0;
  while (stat >> key >> value)
    if (key == "inactive_file" || key == "active_file") cache += value;
  const Index left = std::max<Index>(0, *limit - *used + cache);
  return system ? std::min(*system, left) : left;
}

}  // namespace reshard
