// SPDX-License-Identifier: Apache-2.0
#include "reshard/memory/available_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "reshard/memory/control_group.h"

namespace reshard {
namespace {

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
  const auto left = control_group_limits().memory_left_bytes;
  if (!left) return system.value_or(0);
  return system ? std::min(*system, *left) : *left;
}

}  // namespace reshard
