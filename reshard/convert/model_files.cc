// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/model_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <set>

#include "reshard/convert/output/companion_files.h"
#include "reshard/io/checkpoint/checkpoint.h"
#include "reshard/io/checkpoint/index.h"
#include "reshard/io/files/json.h"
#include "reshard/io/hf/config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

Result<> write_config(const std::string& path, const std::string& to, bool as_stored) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxConfigBytes));
  const auto plain = as_stored ? Result<std::string>(text) : config_of_plain_weights(text, path);
  return write_new_text_file((fs::path(to) / kConfigFile).string(), RESHARD_TRY(plain));
}

}  // namespace

std::string text_of(const std::vector<FileLeftOut>& files) {
  std::map<std::string, std::vector<std::string>> by_reason;
  for (const FileLeftOut& file : files) by_reason[file.why].push_back(file.name);
  std::string text;
  for (const auto& [why, names] : by_reason)
    text += fmt::format("{}left out {}: {}", text.empty() ? "" : "\n", fmt::join(names, ", "), why);
  return text;
}

Result<std::vector<FileLeftOut>> copy_model_files(const std::string& from, const std::string& to,
                                                  bool as_stored) {
  std::error_code error;
  if (!fs::is_directory(from, error)) {
    RESHARD_TRY(write_config(from, to, as_stored));
    return std::vector<FileLeftOut>();
  }
  output::CompanionChoice choice{.as_stored = as_stored};
  if (const auto weights = Checkpoint::open(from)) choice.done = output::weight_files(*weights);
  const std::string config = (fs::path(from) / kConfigFile).string();
  if (fs::is_regular_file(config, error) && output::is_of_checkpoint(from, kConfigFile)) {
    RESHARD_TRY(write_config(config, to, as_stored));
    choice.done.emplace(kConfigFile);
  }
  return output::copy_companion_files(from, to, choice);
}

}  // namespace reshard
