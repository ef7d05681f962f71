// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/example_configs.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "reshard/base/closest_name.h"
#include "reshard/base/install_dirs.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> folders() {
  if (const char* own = std::getenv("RESHARD_EXAMPLES"); own != nullptr && *own != '\0')
    return {own};
  std::vector<fs::path> found;
  for (const fs::path& folder : install_dirs()) {
    found.push_back(folder.parent_path() / "share/reshard/configs");
    found.push_back(folder / "configs");  // of a Python package
  }
  found.emplace_back(RESHARD_SOURCE_CONFIGS);
  return found;
}

std::vector<fs::path> cluster_folders() {
  std::vector<fs::path> found;
  for (const fs::path& folder : folders()) found.push_back(folder.parent_path() / "clusters");
  return found;
}

std::vector<fs::path> card_folders(const std::string& framework) {
  std::vector<fs::path> found;
  for (const fs::path& folder : folders())
    found.push_back(folder.parent_path() / "cards" / framework);
  return found;
}

std::optional<std::string> find_in(const std::vector<fs::path>& folders, const std::string& name) {
  if (name.empty() || name.find('/') != name.npos) return std::nullopt;
  std::error_code ignored;
  for (const fs::path& folder : folders)
    if (const fs::path path = folder / (name + ".json"); fs::is_regular_file(path, ignored))
      return path.string();
  return std::nullopt;
}

std::vector<std::string> names_in(const std::vector<fs::path>& folders) {
  std::set<std::string> names;
  for (const fs::path& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
      if (it->path().extension() == ".json") names.insert(it->path().stem().string());
  }
  return {names.begin(), names.end()};
}

}  // namespace

std::optional<std::string> find_example(const std::string& name) {
  return find_in(folders(), name);
}

std::optional<std::string> find_card_file(const std::string& framework, const std::string& name) {
  return find_in(card_folders(framework), name);
}

std::vector<std::string> card_names(const std::string& framework) {
  return names_in(card_folders(framework));
}

std::optional<std::string> find_example_cluster(const std::string& name) {
  return find_in(cluster_folders(), name);
}

std::vector<std::string> example_names() { return names_in(folders()); }

std::vector<std::string> example_cluster_names() { return names_in(cluster_folders()); }

std::optional<std::string> nearest_example(std::string_view name) {
  const std::vector<std::string> examples = example_names();
  const auto begins = [&](const std::string& example) {
    return name.size() >= example.size() &&
           std::equal(example.begin(), example.end(), name.begin(), [](char a, char b) {
             return a == b || (b >= 'A' && b <= 'Z' && a == b - 'A' + 'a');
           });
  };
  const std::string* longest = nullptr;
  for (const std::string& example : examples)
    if (begins(example) && (longest == nullptr || example.size() > longest->size()))
      longest = &example;
  if (longest != nullptr) return *longest;
  const auto found = closest_name(name, {examples.begin(), examples.end()});
  return found ? std::optional(std::string(*found)) : std::nullopt;
}

}  // namespace reshard
