// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/companion_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "reshard/io/checkpoint/index.h"
#include "reshard/io/files/json.h"

namespace reshard::output {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;
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
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 0)
    return folder.write_text(name, "");
  return folder.write_text(name, RESHARD_TRY(read_text_file(path, kMaxBytes)));
}

bool is_of_checkpoint(const std::string& folder, std::string_view name) {
  std::error_code error;
  const fs::path home = fs::canonical(folder, error);
  if (error) return false;
  const fs::path file = fs::canonical(home / name, error);
  if (error) return false;
  if (const auto inside = file.lexically_relative(home); *inside.begin() != "..") return true;
  // models--NAME/snapshots/REVISION/config.json -> ../../blobs/HASH
  return home.parent_path().filename() == "snapshots" &&
         file.parent_path() == home.parent_path().parent_path() / "blobs";
}

Result<std::vector<std::string>> copy_companion_files(const std::string& from_folder,
                                                      OutputDir& folder, bool but_config) {
  std::error_code error;
  std::vector<std::string> names, left_out;
  for (fs::directory_iterator it(from_folder, error), end; !error && it != end;
       it.increment(error)) {
    const auto name = it->path().filename().string();
    std::error_code unreadable;
    if (but_config && name == kConfigFile) continue;
    if (!belongs(name) || !it->is_regular_file(unreadable) || it->file_size(unreadable) > kMaxBytes)
      continue;
    (is_of_checkpoint(from_folder, name) ? names : left_out).push_back(name);
  }
  if (error)
    return fail(Code::io,
                fmt::format("{}: cannot list the folder: {}", from_folder, error.message()));
  std::sort(names.begin(), names.end());
  std::sort(left_out.begin(), left_out.end());
  for (const std::string& name : names)
    RESHARD_TRY(copy_file_into((fs::path(from_folder) / name).string(), name, folder));
  return left_out;
}

}  // namespace reshard::output
