// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/shard_of_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "reshard/io/checkpoint/index.h"
#include "reshard/io/files/json.h"
#include "reshard/model/name_pattern.h"

namespace reshard::identify {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxIndexBytes = 100'000'000;

/// The text of an index beside the file, or none.
Result<std::optional<std::string>> index_beside(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::optional<std::string>();
  return std::optional(RESHARD_TRY(read_text_file(path.string(), kMaxIndexBytes)));
}

tl::unexpected<Error> is_shard(const std::string& path, const std::string& what) {
  const auto folder = fs::path(path).parent_path().string();
  return fail(Code::invalid_argument, fmt::format("{}: {}; name its folder, {}", path, what,
                                                  folder.empty() ? "." : folder));
}

/// A file of ranks holds local tensors, also if it is the only one.
Result<> check_ranks(const std::string& path, const std::string& name) {
  const fs::path index_path = fs::path(path).parent_path() / kRankIndexFile;
  const auto text = RESHARD_TRY(index_beside(index_path));
  if (!text) return {};
  const auto index = parse_rank_index(*text);
  if (!index) return tl::unexpected(Error(index.error()).in(index_path.string()));
  if (std::ranges::find(index->files, name) == index->files.end()) return {};
  return is_shard(path, fmt::format("is what one of {} ranks of the layout '{}' holds",
                                    index->files.size(), index->layout));
}

Result<> check_hf(const std::string& path, const std::string& name) {
  const fs::path index_path = fs::path(path).parent_path() / kHfIndexFile;
  const auto text = RESHARD_TRY(index_beside(index_path));
  if (text) {
    const auto map = parse_hf_index(*text);
    if (!map) return tl::unexpected(Error(map.error()).in(index_path.string()));
    std::set<std::string> files;
    for (const auto& [tensor, file] : *map) files.insert(file);
    if (files.size() < 2 || !files.contains(name)) return {};
    return is_shard(path, fmt::format("is one of {} files of a checkpoint", files.size()));
  }
  const auto numbers = match_pattern("*-#-of-#.safetensors", name);
  if (!numbers) return {};
  std::string files = numbers->back();
  files.erase(0, files.find_first_not_of('0'));
  if (files.empty() || files == "1") return {};
  return is_shard(path, fmt::format("is one of {} files of a checkpoint by its name, and {} is not "
                                    "beside it",
                                    files, kHfIndexFile));
}

}  // namespace

Result<> check_not_shard(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  RESHARD_TRY(check_ranks(path, name));
  return check_hf(path, name);
}

}  // namespace reshard::identify
