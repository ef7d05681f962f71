// SPDX-License-Identifier: Apache-2.0
// A group's limits are files in its folder. Version 2 has one tree; version 1 one tree for each
// controller, and says in /proc/self/cgroup where this process is in it. In a container whose
// namespace hides the path, its own folder is the root of the tree: so all folders from the group's
// path up to the root are read, and those that are not there are left out.
#include "reshard/memory/control_group.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace reshard {
namespace {

/// Version 1 writes "no limit" as the largest multiple of a page in 63 bits.
constexpr Index kUnlimited = Index{1} << 60;

std::optional<Index> number_in(const std::string& path) {
  std::ifstream file(path);
  Index value = 0;
  if (file >> value && value >= 0 && value < kUnlimited) return value;
  return std::nullopt;
}

template <class T>
void take_least(std::optional<T>& least, std::optional<T> value) {
  if (value && (!least || *value < *least)) least = value;
}

/// The sum of the values of `keys` in a file of "key value" lines.
Index sum_in(const std::string& path, const std::vector<std::string>& keys) {
  std::ifstream file(path);
  std::string key;
  Index value = 0, sum = 0;
  while (file >> key >> value)
    if (std::ranges::find(keys, key) != keys.end()) sum += value;
  return sum;
}

/// The group's path in the tree of a controller, or of version 2 if `controller` is empty.
std::string path_of(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    // "4:cpu,cpuacct:/path"; version 2 names no controller.
    std::istringstream names(line.substr(first + 1, second - first - 1));
    bool is_it = controller.empty() && second == first + 1;
    for (std::string name; std::getline(names, name, ',');) is_it |= name == controller;
    if (is_it) return line.substr(second + 1);
  }
  return "/";
}

/// The folders of the group and of those around it.
std::vector<std::string> folders_of(const std::string& tree, std::string path) {
  std::vector<std::string> out;
  // A path that leads out of the namespace's tree names no folder that can be read.
  if (path.find("/..") != path.npos) path.clear();
  for (; path.size() > 1; path.erase(path.rfind('/'))) out.push_back(tree + path);
  out.push_back(tree);
  return out;
}

void take_memory(ControlGroupLimits& out, const std::string& folder, const char* limit_file,
                 const char* used_file, const std::vector<std::string>& cache) {
  const auto limit = number_in(folder + "/" + limit_file);
  const auto used = number_in(folder + "/" + used_file);
  take_least(out.memory_bytes, limit);
  if (!limit || !used) return;
  const Index reclaimable = sum_in(folder + "/memory.stat", cache);
  take_least(out.memory_left_bytes,
             std::optional(std::clamp<Index>(*limit - *used + reclaimable, 0, *limit)));
}

void read_version_2(ControlGroupLimits& out, const std::string& root) {
  for (const std::string& folder : folders_of(root + "/sys/fs/cgroup", path_of(root, ""))) {
    take_memory(out, folder, "memory.max", "memory.current", {"inactive_file", "active_file"});
    std::ifstream file(folder + "/cpu.max");
    double quota = 0, period = 0;
    if (file >> quota >> period && quota > 0 && period > 0)
      take_least(out.cores, std::optional(quota / period));
    take_least(out.processes, number_in(folder + "/pids.max"));
  }
}

void read_version_1(ControlGroupLimits& out, const std::string& root) {
  const auto folders = [&](const std::string& controller) {
    return folders_of(root + "/sys/fs/cgroup/" + controller, path_of(root, controller));
  };
  for (const std::string& folder : folders("memory"))
    take_memory(out, folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                {"total_inactive_file", "total_active_file"});
  for (const std::string& folder : folders("cpu")) {
    const auto quota = number_in(folder + "/cpu.cfs_quota_us");
    const auto period = number_in(folder + "/cpu.cfs_period_us");
    if (quota && period && *period > 0)
      take_least(out.cores,
                 std::optional(static_cast<double>(*quota) / static_cast<double>(*period)));
  }
  for (const std::string& folder : folders("pids"))
    take_least(out.processes, number_in(folder + "/pids.max"));
}

}  // namespace

ControlGroupLimits control_group_limits(const std::string& root) {
  ControlGroupLimits out;
  const auto exists = [&](const char* path) {
    return std::ifstream(root + "/sys/fs/cgroup/" + path).good();
  };
  if (exists("cgroup.controllers") || exists("cgroup.procs")) {
    out.version = 2;
    read_version_2(out, root);
  } else if (exists("memory/cgroup.procs") || exists("cpu/cgroup.procs") ||
             exists("pids/cgroup.procs")) {
    out.version = 1;
    read_version_1(out, root);
  }
  return out;
}

}  // namespace reshard
