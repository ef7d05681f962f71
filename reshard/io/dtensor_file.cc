// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/dtensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reshard/io/files/json_fields.h"
#include "reshard/io/rules_file.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxDtensorFile = std::size_t{16} << 20;
constexpr Index kMaxRanks = Index{1} << 20;
constexpr Index kMaxNumber = Index{1} << 40;

Result<std::vector<Index>> integers(const files::Fields& fields, std::string_view key,
                                    std::size_t most, Index least, Index greatest) {
  std::vector<Index> numbers;
  for (const Json& entry : RESHARD_TRY(fields.list(key, most))) {
    const auto n = entry.integer();
    if (!n || *n < least || *n > greatest)
      return fail(Code::corrupt,
                  fmt::format("{}: {} must be whole numbers from {} to {}, one is {}",
                              fields.where(), key, least, greatest, entry.describe()));
    numbers.push_back(*n);
  }
  return numbers;
}

Result<DTensorMesh> parse_mesh(const files::Fields& fields) {
  DTensorMesh mesh;
  mesh.name = RESHARD_TRY(fields.text("name"));
  mesh.shape = RESHARD_TRY(integers(fields, "shape", kMaxDims, 1, kMaxRanks));
  if (mesh.shape.empty())
    return fail(Code::corrupt,
                fmt::format("{}: shape is missing or empty, must be a list such as [2, 4]",
                            fields.where()));
  Index size = 1;
  for (Index n : mesh.shape) {
    if (n > kMaxRanks / size)
      return fail(Code::corrupt,
                  fmt::format("{}: shape has more than {} ranks", fields.where(), kMaxRanks));
    size *= n;
  }
  if (fields.has("ranks") == fields.has("first") && fields.has("first"))
    return fail(Code::corrupt,
                fmt::format("{}: must have ranks or first, not both", fields.where()));
  const Index first = RESHARD_TRY(fields.integer_or("first", 0, 0, kMaxRanks - size));
  std::vector<Index> ranks =
      RESHARD_TRY(integers(fields, "ranks", static_cast<std::size_t>(kMaxRanks), 0, kMaxRanks - 1));
  if (!fields.has("ranks"))
    for (Index i = 0; i < size; ++i) ranks.push_back(first + i);
  if (static_cast<Index>(ranks.size()) != size)
    return fail(Code::corrupt, fmt::format("{}: shape has {} ranks but ranks lists {}",
                                           fields.where(), size, ranks.size()));
  for (Index r : ranks) mesh.ranks.emplace_back(static_cast<Rank::rep>(r));
  return mesh;
}

class RuleParser {
 public:
  RuleParser(const files::Fields& fields, const std::vector<DTensorMesh>& meshes)
      : fields_(fields), meshes_(meshes) {}

  Result<DTensorRule> parse() {
    DTensorRule rule;
    rule.match = RESHARD_TRY(fields_.text("match"));
    if (count_wildcards(rule.match) > kMaxWildcards)
      return fail(
          Code::corrupt,
          fmt::format("{}: match {} has {} of * and #, at most {} are allowed", fields_.where(),
                      in_quotes(rule.match), count_wildcards(rule.match), kMaxWildcards));
    if (fields_.has("name")) {
      rule.name = RESHARD_TRY(fields_.text("name"));
      RESHARD_TRY(
          check_local_name(rule.name, rule.match, count_wildcards(rule.match), fields_.where()));
    }
    rule.mesh = RESHARD_TRY(mesh());
    RESHARD_TRY(placements(rule));
    RESHARD_TRY(range(rule));
    return rule;
  }

 private:
  /// The index of the named mesh; if the key is absent, of the only one.
  Result<std::size_t> mesh() const {
    if (!fields_.has("mesh") && meshes_.size() == 1) return std::size_t{0};
    const std::string name = RESHARD_TRY(fields_.text("mesh"));
    std::vector<std::string_view> names;
    for (std::size_t i = 0; i < meshes_.size(); ++i) {
      if (meshes_[i].name == name) return i;
      names.push_back(meshes_[i].name);
    }
    return fail(Code::corrupt,
                fmt::format("{}: mesh {} is not among the file's meshes ({})", fields_.where(),
                            in_quotes(name), fmt::join(names, ", ")));
  }

  Result<> placements(DTensorRule& rule) const {
    for (const Json& entry : RESHARD_TRY(fields_.list("placements", kMaxDims))) {
      if (entry.string() == nullptr)
        return fail(Code::corrupt,
                    fmt::format("{}: placements must be strings such as \"S(0)\", one is {}",
                                fields_.where(), entry.describe()));
      const auto placement = parse_placement(*entry.string());
      if (!placement)
        return fail(Code::corrupt,
                    fmt::format("{}: {}", fields_.where(), placement.error().message));
      rule.placements.push_back(*placement);
    }
    const DTensorMesh& mesh = meshes_[rule.mesh];
    if (rule.placements.size() == mesh.shape.size()) return {};
    return fail(Code::corrupt,
                fmt::format("{}: {} placements, but mesh {} has {} dimensions", fields_.where(),
                            rule.placements.size(), in_quotes(mesh.name), mesh.shape.size()));
  }

  Result<> range(DTensorRule& rule) const {
    if (!fields_.has("from") && !fields_.has("to") && !fields_.has("number")) return {};
    const int wildcards = count_wildcards(rule.match);
    if (wildcards == 0)
      return fail(Code::corrupt, fmt::format("{}: from and to need a # in match {}",
                                             fields_.where(), in_quotes(rule.match)));
    rule.number = static_cast<int>(RESHARD_TRY(fields_.integer_or("number", 1, 1, wildcards)));
    rule.from = RESHARD_TRY(fields_.integer_or("from", 0, 0, kMaxNumber));
    rule.to = RESHARD_TRY(fields_.integer_or("to", kMaxNumber, rule.from, kMaxNumber));
    return {};
  }

  const files::Fields& fields_;
  const std::vector<DTensorMesh>& meshes_;
};

}  // namespace

Result<DTensorSet> parse_dtensor(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text));
  const auto root = RESHARD_TRY(files::Fields::of(json, "the file", {"meshes", "rules"}));
  DTensorSet set;
  std::set<std::string> names;
  for (const Json& entry : RESHARD_TRY(root.list("meshes", kMaxDTensorMeshes))) {
    const auto fields = RESHARD_TRY(files::Fields::of(
        entry, fmt::format("mesh {}", set.meshes.size() + 1), {"name", "shape", "first", "ranks"}));
    set.meshes.push_back(RESHARD_TRY(parse_mesh(fields)));
    if (!names.insert(set.meshes.back().name).second)
      return fail(Code::corrupt, fmt::format("{}: name {} is taken", fields.where(),
                                             in_quotes(set.meshes.back().name)));
  }
  if (set.meshes.empty())
    return fail(
        Code::corrupt,
        fmt::format("meshes is missing or empty, must be a list of {{\"name\": ..., \"shape\": "
                    "[...]}}"));
  const auto rules = RESHARD_TRY(root.list("rules", kMaxRules));
  if (rules.empty())
    return fail(Code::corrupt,
                fmt::format("rules is missing or empty, must be a list of {{\"match\": ..., "
                            "\"placements\": [...]}}"));
  for (const Json& entry : rules) {
    const auto fields = RESHARD_TRY(
        files::Fields::of(entry, fmt::format("rule {}", set.rules.size() + 1),
                          {"match", "name", "mesh", "placements", "number", "from", "to"}));
    set.rules.push_back(RESHARD_TRY(RuleParser(fields, set.meshes).parse()));
  }
  return set;
}

Result<DTensorSet> read_dtensor(const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxDtensorFile));
  auto set = parse_dtensor(text);
  if (!set) return tl::unexpected(std::move(set).error().in(path));
  return set;
}

}  // namespace reshard
