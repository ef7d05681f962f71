// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/checkpoint/index.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/io/files/disk.h"
#include "reshard/io/files/json.h"

namespace reshard {
namespace {

constexpr std::string_view kFormat = "reshard-checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr JsonLimits kIndexLimits{
    .bytes = std::size_t{100'000'000}, .values = std::size_t{4} << 20, .depth = 16};
/// The limits for an index that Python wrote.
constexpr JsonLimits kHfIndexLimits{
    .bytes = kIndexLimits.bytes, .values = kIndexLimits.values, .depth = 16, .non_finite = true};

Result<Json> parse_object(std::string_view text, const JsonLimits& limits) {
  auto json = RESHARD_TRY(parse_json(text, limits));
  if (json.object() == nullptr)
    return fail(Code::corrupt, fmt::format("must be an object, is {}", json.describe()));
  return json;
}

Result<std::string> file_name(const Json* value, const std::string& what) {
  if (value == nullptr || value->string() == nullptr)
    return fail(Code::corrupt, fmt::format("{} must be a file name, {}", what, is_what(value)));
  if (auto ok = files::check_file_name(*value->string()); !ok)
    return tl::unexpected(std::move(ok).error().in(what));
  return *value->string();
}

Result<> check_format(const Json& json) {
  const Json* format = json.find("format");
  if (format == nullptr || format->string() == nullptr || *format->string() != kFormat)
    return fail(Code::corrupt, fmt::format("format must be \"{}\", {}", kFormat, is_what(format)));
  const Json* version = json.find("version");
  if (version == nullptr || !version->integer())
    return fail(Code::corrupt, fmt::format("version must be an integer, {}", is_what(version)));
  if (*version->integer() != kVersion)
    return fail(Code::unsupported,
                fmt::format("version {} is not known, this program reads version {}",
                            *version->integer(), kVersion));
  return {};
}

Result<> add_rank(const Json& entry, RankIndex& index) {
  const Json* rank = entry.find("rank");
  const auto count = static_cast<std::int64_t>(index.files.size());
  if (rank == nullptr || !rank->integer() || *rank->integer() < 0 || *rank->integer() >= count)
    return fail(Code::corrupt,
                fmt::format("rank in an entry of ranks must be an integer from 0 to {}, {}",
                            count - 1, is_what(rank)));
  auto& file = index.files[static_cast<std::size_t>(*rank->integer())];
  if (!file.empty())
    return fail(Code::corrupt, fmt::format("rank {} appears twice in ranks", *rank->integer()));
  file =
      RESHARD_TRY(file_name(entry.find("file"), fmt::format("file of rank {}", *rank->integer())));
  return {};
}

}  // namespace

Result<WeightMap> parse_hf_index(std::string_view text) {
  const Json json = RESHARD_TRY(parse_object(text, kHfIndexLimits));
  const Json* map = json.find("weight_map");
  if (map == nullptr || map->object() == nullptr)
    return fail(
        Code::corrupt,
        fmt::format("weight_map must be an object of tensor name -> file name, {}", is_what(map)));
  if (map->object()->empty())
    return fail(Code::corrupt, fmt::format("weight_map is empty, must name the tensors"));
  WeightMap weight_map;
  for (const auto& [name, file] : *map->object())
    weight_map.emplace(name, RESHARD_TRY(file_name(&file, "weight_map " + in_quotes(name))));
  return weight_map;
}

std::string hf_index_text(const WeightMap& weight_map, std::int64_t total_bytes) {
  Json::Object map;
  for (const auto& [name, file] : weight_map) map.push_back({name, Json(file)});
  Json::Object root;
  root.push_back({"metadata", Json(Json::Object{{"total_size", Json(total_bytes)}})});
  root.push_back({"weight_map", Json(std::move(map))});
  return Json(std::move(root)).dump(true) + "\n";
}

Result<RankIndex> parse_rank_index(std::string_view text) {
  const Json json = RESHARD_TRY(parse_object(text, kIndexLimits));
  RESHARD_TRY(check_format(json));
  RankIndex index;
  const Json* layout = json.find("layout");
  if (layout == nullptr || layout->string() == nullptr || layout->string()->empty())
    return fail(Code::corrupt, fmt::format("layout must be a string such as \"megatron:tp=2\", {}",
                                           is_what(layout)));
  index.layout = *layout->string();
  const Json* size = json.find("world_size");
  const auto ranks = size ? size->integer() : std::nullopt;
  if (!ranks || *ranks < 1 || *ranks > kMaxWorldSize)
    return fail(Code::corrupt, fmt::format("world_size must be an integer from 1 to {}, {}",
                                           kMaxWorldSize, is_what(size)));
  const Json* entries = json.find("ranks");
  if (entries == nullptr || entries->array() == nullptr)
    return fail(Code::corrupt, fmt::format("ranks must be a list of {{\"rank\", \"file\"}}, {}",
                                           is_what(entries)));
  index.files.resize(static_cast<std::size_t>(*ranks));
  for (const Json& entry : *entries->array()) RESHARD_TRY(add_rank(entry, index));
  const auto missing = std::find(index.files.begin(), index.files.end(), std::string());
  if (missing != index.files.end())
    return fail(Code::corrupt, fmt::format("rank {} of world_size {} is missing from ranks",
                                           missing - index.files.begin(), *ranks));
  return index;
}

std::string rank_index_text(const RankIndex& index) {
  std::string text = "{\n";
  text += fmt::format("  \"format\": \"{}\",\n  \"version\": {},\n", kFormat, kVersion);
  text += fmt::format("  \"layout\": {},\n", json_quote(index.layout));
  text += fmt::format("  \"world_size\": {},\n  \"ranks\": [", index.files.size());
  for (std::size_t i = 0; i < index.files.size(); ++i)
    text += fmt::format("{}\n    {{\"rank\": {}, \"file\": {}}}", i == 0 ? "" : ",", i,
                        json_quote(index.files[i]));
  return text + "\n  ]\n}\n";
}

std::string rank_file_name(Rank rank) {
  return fmt::format("rank-{:05}.safetensors", rank.value());
}

std::string hf_file_name(int shard, int shards) {
  if (shards == 1) return std::string(kHfFile);
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

}  // namespace reshard
