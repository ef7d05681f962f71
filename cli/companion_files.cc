// SPDX-License-Identifier: Apache-2.0
#include "cli/companion_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "reshard/io/checkpoint_index.h"

namespace reshard::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{64} << 20;
constexpr std::array<std::string_view, 6> kNames = {
    "config.json", "generation_config.json",  "special_tokens_map.json", "added_tokens.json",
    "vocab.json",  "preprocessor_config.json"};
constexpr std::array<std::string_view, 2> kBeginnings = {"tokenizer", "chat_template"};
constexpr std::array<std::string_view, 3> kEndings = {".txt", ".model", ".jinja"};

bool belongs(std::string_view name) {
  const auto begins = [&](std::string_view text) { return name.starts_with(text); };
  const auto ends = [&](std::string_view text) { return name.ends_with(text); };
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kBeginnings.begin(), kBeginnings.end(), begins) ||
         std::any_of(kEndings.begin(), kEndings.end(), ends);
}

}  // namespace

Result<> copy_file_into(const std::string& path, std::string_view name, OutputDir& folder) {
  std::error_code error;
  const auto to = folder.path_of(name);
  fs::copy_file(path, to, error);
  if (error)
    return fail(Code::io, fmt::format("{}: cannot copy it to {}: {}", path, to, error.message()));
  return {};
}

Result<> copy_companion_files(const std::string& from_folder, OutputDir& folder, bool but_config) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(from_folder, error), end; !error && it != end;
       it.increment(error)) {
    const auto name = it->path().filename().string();
    std::error_code unreadable;
    if (but_config && name == kConfigFile) continue;
    if (belongs(name) && it->is_regular_file(unreadable) && it->file_size(unreadable) <= kMaxBytes)
      names.push_back(name);
  }
  if (error)
    return fail(Code::io,
                fmt::format("{}: cannot list the folder: {}", from_folder, error.message()));
  std::sort(names.begin(), names.end());
  for (const std::string& name : names)
    RESHARD_TRY(copy_file_into((fs::path(from_folder) / name).string(), name, folder));
  return {};
}

}  // namespace reshard::cli
