// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/hf/hub.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"

namespace reshard::hf {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxPart = 96, kMaxRef = 256;

bool is_part(std::string_view text) {
  constexpr std::string_view kMarks = "-._";
  const auto is_word = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && text.size() <= kMaxPart && is_word(text.front()) &&
         is_word(text.back()) && text.find("--") == text.npos && text.find("..") == text.npos &&
         std::all_of(text.begin(), text.end(),
                     [&](char c) { return is_word(c) || kMarks.find(c) != kMarks.npos; });
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

/// "models--Qwen--Qwen3-8B"
std::string folder_of(std::string_view id) {
  const std::size_t slash = id.find('/');
  return "models--" + std::string(id.substr(0, slash)) + "--" + std::string(id.substr(slash + 1));
}

/// The revision that the repository's branch main is; none if that is not known.
std::optional<std::string> revision_of_main(const fs::path& repository) {
  auto text = read_text_file((repository / "refs" / "main").string(), kMaxRef);
  if (!text) return std::nullopt;
  while (text->ends_with('\n') || text->ends_with('\r') || text->ends_with(' ')) text->pop_back();
  if (!files::check_file_name(*text)) return std::nullopt;
  return *std::move(text);
}

}  // namespace

bool is_hub_id(std::string_view text) {
  const std::size_t slash = text.find('/');
  return slash != text.npos && is_part(text.substr(0, slash)) && is_part(text.substr(slash + 1));
}

std::string hub_cache() {
  if (const auto cache = variable("HF_HUB_CACHE")) return *cache;
  if (const auto home = variable("HF_HOME")) return (fs::path(*home) / "hub").string();
  const auto base = variable("XDG_CACHE_HOME");
  const fs::path caches =
      base ? fs::path(*base) : fs::path(variable("HOME").value_or(".")) / ".cache";
  return (caches / "huggingface" / "hub").string();
}

std::optional<std::string> cached_snapshot(std::string_view id) {
  const fs::path repository = fs::path(hub_cache()) / folder_of(id);
  const fs::path snapshots = repository / "snapshots";
  std::error_code error;
  if (const auto main = revision_of_main(repository))
    if (const fs::path folder = snapshots / *main; fs::is_directory(folder, error))
      return folder.string();
  std::vector<std::string> found;
  for (fs::directory_iterator it(snapshots, error), end; !error && it != end; it.increment(error))
    if (it->is_directory(error)) found.push_back(it->path().string());
  if (found.size() != 1) return std::nullopt;
  return found[0];
}

}  // namespace reshard::hf
