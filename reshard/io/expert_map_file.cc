// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/expert_map_file.h"

#include <fmt/format.h>

#include "reshard/io/files/json.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxExpertMapFile = std::size_t{16} << 20;
constexpr Index kMaxExperts = Index{1} << 20;

Result<std::vector<Index>> parse_table(const Json::Array& list, std::size_t at) {
  std::vector<Index> table;
  for (const Json& entry : list) {
    const auto expert = entry.integer();
    if (!expert || *expert < 0 || *expert >= kMaxExperts)
      return fail(Code::corrupt, fmt::format("list {}: entry {} must be the number of an expert, "
                                             "is {}",
                                             at, table.size(), entry.describe()));
    table.push_back(*expert);
  }
  if (table.empty()) return fail(Code::corrupt, fmt::format("list {} is empty", at));
  return table;
}

}  // namespace

Result<ExpertTables> parse_expert_map(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text));
  const Json::Array* list = json.array();
  if (list == nullptr || list->empty())
    return fail(Code::corrupt,
                "must be a list of experts such as [0, 1, 2, 0], or one such list "
                "per layer with experts");
  ExpertTables tables;
  if (list->front().array() == nullptr) {
    tables.push_back(RESHARD_TRY(parse_table(*list, 0)));
    return tables;
  }
  for (const Json& entry : *list) {
    if (entry.array() == nullptr)
      return fail(Code::corrupt, fmt::format("entry {} must be a list like those before it, is {}",
                                             tables.size(), entry.describe()));
    tables.push_back(RESHARD_TRY(parse_table(*entry.array(), tables.size())));
  }
  return tables;
}

Result<ExpertTables> read_expert_map(const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxExpertMapFile));
  auto tables = parse_expert_map(text);
  if (!tables) return tl::unexpected(std::move(tables).error().in(path));
  return tables;
}

}  // namespace reshard
