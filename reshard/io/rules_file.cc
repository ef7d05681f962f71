// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/rules_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "reshard/io/files/disk.h"
#include "reshard/io/rule_parser.h"

namespace reshard {
namespace {

using io::expression;
using io::expression_if;
using io::is_one_line;
using io::line;

constexpr std::size_t kMaxRulesFile = std::size_t{16} << 20;
constexpr Index kMaxAxis = Index{1} << 20;
constexpr std::size_t kMaxAxisName = 32;
constexpr std::size_t kMaxKeys = 32, kMaxAxes = 4 * kMaxDims, kMaxBlocks = 16;
static_assert(kMaxRulePattern == files::kMaxFieldText);

bool is_axis_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && name.size() <= kMaxAxisName &&
         std::all_of(name.begin(), name.end(), allowed);
}

/// The axis of an earlier mesh that another mesh has too, without a size of its own.
const RuleSet::MeshAxis* again(const std::vector<RuleSet::MeshAxis>& axes,
                               const RuleSet::MeshAxis& axis) {
  const auto same = [&](const RuleSet::MeshAxis& other) { return other.name == axis.name; };
  const auto first = std::ranges::find_if(axes, same);
  const bool beside = std::ranges::any_of(
      axes, [&](const auto& other) { return same(other) && other.mesh == axis.mesh; });
  return first == axes.end() || beside ? nullptr : &*first;
}

Result<std::vector<RuleSet::MeshAxis>> parse_axes(const files::Fields& root) {
  std::vector<RuleSet::MeshAxis> axes;
  std::set<std::string> seen{"offset", "dtype"};  // keys of every layout
  for (const Json& entry : RESHARD_TRY(root.list("axes", kMaxAxes))) {
    const auto fields = RESHARD_TRY(files::Fields::of(
        entry, fmt::format("axis {}", axes.size() + 1), {"name", "size", "mesh"}));
    RuleSet::MeshAxis axis{RESHARD_TRY(fields.text("name"))};
    if (fields.has("mesh")) axis.mesh = RESHARD_TRY(line(fields, "mesh"));
    if (!is_axis_name(axis.name))
      return fail(Code::corrupt,
                  fmt::format("{}: name must be letters, digits and _, at most {}, is {}",
                              fields.where(), kMaxAxisName, in_quotes(axis.name)));
    const Json* size = fields.find("size");
    const RuleSet::MeshAxis* first = size == nullptr ? again(axes, axis) : nullptr;
    if (first == nullptr && !seen.insert(axis.name).second)
      return fail(Code::corrupt,
                  fmt::format("{}: name {} is taken{}", fields.where(), in_quotes(axis.name),
                              axis.mesh.empty() ? ""
                                                : "; an axis of two meshes has "
                                                  "its size in the first"));
    if (first != nullptr) {
      axis.size = first->size;
      axis.of = first->of;
    } else if (size != nullptr && size->string() != nullptr) {
      axis.of = RESHARD_TRY(expression(fields, "size", 1));
    } else {
      axis.size = RESHARD_TRY(fields.integer("size", 1, kMaxAxis));
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

Result<std::vector<std::string>> texts(const files::Fields& fields, std::string_view key,
                                       bool empty) {
  std::vector<std::string> found;
  for (const Json& json : RESHARD_TRY(fields.list(key, kMaxKeys))) {
    if (json.string() == nullptr || (json.string()->empty() && !empty) ||
        json.string()->size() > files::kMaxFieldText || !is_one_line(*json.string()))
      return fail(Code::corrupt, fmt::format("{}: {} must list names, one is {}", fields.where(),
                                             key, json.describe()));
    found.push_back(*json.string());
  }
  return found;
}

/// A key that is one of words, and the texts that these stand for.
Result<> parse_words(const files::Fields& fields, RuleSet::Key& key) {
  key.words = RESHARD_TRY(texts(fields, "words", false));
  key.texts = RESHARD_TRY(texts(fields, "texts", true));
  const bool alike = key.texts.empty() || key.texts.size() == key.words.size();
  if (alike && std::set(key.words.begin(), key.words.end()).size() == key.words.size()) return {};
  return fail(Code::corrupt,
              fmt::format("{}: words must differ, and texts be as many", fields.where()));
}

Result<> parse_keys(const files::Fields& root, RuleSet& set) {
  std::set<std::string> seen{"offset", "dtype"};
  for (const RuleSet::MeshAxis& axis : set.axes) seen.insert(axis.name);
  for (const RuleSet::Key& key : set.keys) seen.insert(key.name);
  for (const Json& entry : RESHARD_TRY(root.list("keys", kMaxKeys))) {
    const auto place = fmt::format("key {}", set.keys.size() + 1);
    const auto fields =
        RESHARD_TRY(files::Fields::of(entry, place, {"name", "default", "words", "texts", "file"}));
    RuleSet::Key key{RESHARD_TRY(fields.text("name")),
                     RESHARD_TRY(fields.integer_or("default", 1, 0, kMaxAxis))};
    if (!is_axis_name(key.name) || !seen.insert(key.name).second)
      return fail(Code::corrupt,
                  fmt::format("{}: name {} is taken, or not of letters, digits and _", place,
                              in_quotes(key.name)));
    key.file = RESHARD_TRY(fields.flag_or("file", false));
    if (key.file && key.name != "expert_map")
      return fail(Code::corrupt, fmt::format("{}: only expert_map names a file", place));
    RESHARD_TRY(parse_words(fields, key));
    set.keys.push_back(std::move(key));
  }
  return {};
}

Result<> parse_requirements(const files::Fields& root, RuleSet& set) {
  for (const Json& entry : RESHARD_TRY(root.list("require", kMaxKeys))) {
    const auto place = fmt::format("require {}", set.require.size() + 1);
    const auto fields =
        RESHARD_TRY(files::Fields::of(entry, place, {"that", "says", "unsupported"}));
    set.require.push_back({RESHARD_TRY(expression(fields, "that", 0)),
                           RESHARD_TRY(line(fields, "says")),
                           RESHARD_TRY(fields.flag_or("unsupported", false))});
  }
  return {};
}

/// The members of an object with any keys, which are names.
Result<Json::Object> members(const files::Fields& root, std::string_view key) {
  const Json* json = root.find(key);
  if (json == nullptr) return Json::Object();
  if (json->object() == nullptr || json->object()->size() > kMaxKeys)
    return fail(Code::corrupt, fmt::format("{}: {} must be an object of at most {} members, is {}",
                                           root.where(), key, kMaxKeys, json->describe()));
  for (const Json::Member& member : *json->object())
    if (!is_axis_name(member.key))
      return fail(Code::corrupt, fmt::format("{}: {}: {} is not of letters, digits and _",
                                             root.where(), key, in_quotes(member.key)));
  return *json->object();
}

Result<> parse_names(const files::Fields& root, RuleSet& set) {
  for (const Json::Member& member : RESHARD_TRY(members(root, "let"))) {
    const auto number = member.value.integer();
    if (!number && member.value.string() == nullptr)
      return fail(Code::corrupt, fmt::format("let: {} must be a number or an expression, is {}",
                                             member.key, member.value.describe()));
    set.let.push_back({member.key, number
                                       ? Expression(*number)
                                       : RESHARD_TRY(Expression::parse(*member.value.string()))});
  }
  for (const Json::Member& member : RESHARD_TRY(members(root, "texts"))) {
    if (member.value.string() == nullptr || !is_one_line(*member.value.string()))
      return fail(Code::corrupt, fmt::format("texts: {} must be a text of one line, is {}",
                                             member.key, member.value.describe()));
    set.texts.push_back({member.key, *member.value.string()});
  }
  return {};
}

/// The patterns of an entry of `complete`, with what they begin with.
Result<std::vector<std::string>> complete_patterns(const files::Fields& fields,
                                                   std::string_view key) {
  const std::string front = fields.has("front") ? RESHARD_TRY(line(fields, "front")) : "";
  std::vector<std::string> patterns;
  for (const Json& json : RESHARD_TRY(fields.list(key, kMaxRules))) {
    if (json.string() == nullptr || !is_one_line(*json.string()) ||
        json.string()->size() > kMaxRulePattern)
      return fail(Code::corrupt, fmt::format("{}: {} must list names, one is {}", fields.where(),
                                             key, json.describe()));
    patterns.push_back(front + *json.string());
  }
  if (!patterns.empty()) return patterns;
  return fail(Code::corrupt, fmt::format("{}: {} is empty", fields.where(), key));
}

/// Errors: '*', a '#' beside a digit, and numbers that differ in count from those of the first.
Result<> check_complete_pattern(const std::string& pattern, const std::string& first,
                                const std::string& where) {
  const auto is_run = [](char c) { return c == '#' || (c >= '0' && c <= '9'); };
  bool good = pattern.find('*') == pattern.npos;
  for (std::size_t i = 0; i + 1 < pattern.size(); ++i)
    good &= !is_run(pattern[i]) || !is_run(pattern[i + 1]) ||
            (pattern[i] != '#' && pattern[i + 1] != '#');
  const int count = count_wildcards(pattern);
  if (good && count == count_wildcards(first) && count <= static_cast<int>(kMaxCompleteNumbers))
    return {};
  return fail(Code::corrupt,
              fmt::format("{}: {} must have as many # as {}, at most {}, none beside a digit, and "
                          "no *",
                          where, in_quotes(pattern), in_quotes(first), kMaxCompleteNumbers));
}

Result<> parse_complete(const files::Fields& root, RuleSet& set) {
  std::size_t count = 0;
  for (const Json& entry : RESHARD_TRY(root.list("complete", kMaxRules))) {
    const auto place = fmt::format("complete {}", set.complete.size() + 1);
    const auto fields =
        RESHARD_TRY(files::Fields::of(entry, place, {"all", "any", "front", "of", "must"}));
    RuleSet::Complete complete;
    complete.any = fields.has("any");
    complete.patterns = RESHARD_TRY(complete_patterns(fields, complete.any ? "any" : "all"));
    complete.of = RESHARD_TRY(expression_if(fields, "of", 0));
    complete.must = RESHARD_TRY(expression_if(fields, "must", 0));
    const std::string& first = complete.patterns[0];
    for (const std::string& pattern : complete.patterns)
      RESHARD_TRY(check_complete_pattern(pattern, first, place));
    const bool numbered = count_wildcards(first) > 0, asks = complete.of || complete.must;
    if (fields.has("all") == complete.any || complete.of.has_value() > numbered ||
        (complete.must && numbered) || (!asks && (complete.any || complete.patterns.size() == 1)))
      return fail(
          Code::corrupt,
          fmt::format("{}: must have either all or any; of with #, or must without; and any, "
                      "or a single name, one of these two",
                      place));
    if ((count += complete.patterns.size()) > kMaxRules)
      return fail(Code::corrupt, fmt::format("complete has more than {} names", kMaxRules));
    set.complete.push_back(std::move(complete));
  }
  return {};
}

Result<> parse_blocks(const files::Fields& root, RuleSet& set) {
  for (const Json& entry : RESHARD_TRY(root.list("blocks", kMaxBlocks))) {
    const auto fields = RESHARD_TRY(
        files::Fields::of(entry, fmt::format("block {}", set.blocks.size() + 1),
                          {"block", "match", "name", "when", "from", "below", "where"}));
    RuleSet::Block block{RESHARD_TRY(line(fields, "block")), {}};
    block.common = RESHARD_TRY(io::RuleParser(fields, set.axes).parse_block());
    set.blocks.push_back(std::move(block));
  }
  return {};
}

/// Adds the rule of an entry, in each block that it names.
Result<> add_rule(const Json& entry, std::size_t number, const RuleSet& set,
                  std::vector<Rule>& rules) {
  const auto fields = RESHARD_TRY(io::RuleParser::fields_of(entry, fmt::format("rule {}", number)));
  std::vector<const RuleSet::Block*> blocks;
  if (fields.has("in")) {
    const std::string in = RESHARD_TRY(line(fields, "in"));
    for (const RuleSet::Block& block : set.blocks)
      if (block.name == in) blocks.push_back(&block);
    if (blocks.empty())
      return fail(Code::corrupt,
                  fmt::format("{}: there is no block {}", fields.where(), in_quotes(in)));
  } else {
    blocks.push_back(nullptr);
  }
  for (const RuleSet::Block* block : blocks) {
    rules.push_back(RESHARD_TRY(io::RuleParser(fields, set.axes, block).parse()));
    rules.back().number = number;
  }
  return {};
}

Result<std::optional<RuleSet::Card>> parse_card(const files::Fields& root) {
  if (!root.has("card")) return std::optional<RuleSet::Card>();
  const auto fields = RESHARD_TRY(
      root.object("card", {"framework", "release", "architectures", "model_types", "proof"}));
  RuleSet::Card card;
  card.framework = RESHARD_TRY(line(fields, "framework"));
  card.release = RESHARD_TRY(line(fields, "release"));
  card.architectures = RESHARD_TRY(texts(fields, "architectures", false));
  card.model_types = RESHARD_TRY(texts(fields, "model_types", false));
  card.proof = RESHARD_TRY(line(fields, "proof"));
  return std::optional(std::move(card));
}

}  // namespace

int count_wildcards(std::string_view pattern) {
  return static_cast<int>(
      std::count_if(pattern.begin(), pattern.end(), [](char c) { return c == '*' || c == '#'; }));
}

Result<> check_local_name(std::string_view name, std::string_view match, int wildcards,
                          std::string_view where) {
  for (std::size_t i = 0; i + 1 < name.size(); ++i) {
    const int digit = name[i + 1] - '0';
    if (name[i] != '$' || digit < 0 || digit > 9) continue;
    if (digit == 0 || digit > wildcards)
      return fail(Code::corrupt, fmt::format("{}: name uses ${}, but match {} has {} of * and #",
                                             where, digit, in_quotes(match), wildcards));
  }
  return {};
}

Result<RuleSet> parse_rules(std::string_view text, const RuleSet* base) {
  const Json json = RESHARD_TRY(parse_json(text));
  const auto root =
      RESHARD_TRY(files::Fields::of(json, "the file",
                                    {"axes", "keys", "require", "dtype", "rules", "card", "let",
                                     "texts", "blocks", "base", "complete"}));
  RuleSet set;
  if (root.has("base") != (base != nullptr))
    return fail(Code::corrupt, "base is only for cards that ship with the program");
  if (base != nullptr) {
    if (root.has("axes") || root.has("dtype"))
      return fail(Code::corrupt, "axes and dtype are those of the base");
    set = *base;
    set.require.clear();  // its own come first
    set.let.clear();
    set.texts.clear();
  } else {
    set.axes = RESHARD_TRY(parse_axes(root));
    set.config_dtype = RESHARD_TRY(root.word("dtype", {"model", "config"})) == 1;
  }
  RESHARD_TRY(parse_keys(root, set));
  RESHARD_TRY(parse_requirements(root, set));
  RESHARD_TRY(parse_names(root, set));
  RESHARD_TRY(parse_blocks(root, set));
  RESHARD_TRY(parse_complete(root, set));
  set.card = RESHARD_TRY(parse_card(root));
  const auto entries = RESHARD_TRY(root.list("rules", kMaxRules));
  if (entries.empty() && base == nullptr)
    return fail(Code::corrupt,
                fmt::format("rules is missing or empty, must be a list of {{\"match\": ...}}"));
  std::vector<Rule> rules;
  for (std::size_t i = 0; i < entries.size(); ++i)
    RESHARD_TRY(add_rule(entries[i], i + 1, set, rules));
  if (base != nullptr) {
    set.require.insert(set.require.end(), base->require.begin(), base->require.end());
    set.let.insert(set.let.end(), base->let.begin(), base->let.end());
    set.texts.insert(set.texts.end(), base->texts.begin(), base->texts.end());
    for (Rule& rule : set.rules) rule.number += entries.size();
    rules.insert(rules.end(), std::make_move_iterator(set.rules.begin()),
                 std::make_move_iterator(set.rules.end()));
  }
  set.rules = std::move(rules);
  return set;
}

Result<RuleSet> read_rules(const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxRulesFile));
  auto rules = parse_rules(text);
  if (!rules) return tl::unexpected(std::move(rules).error().in(path));
  return rules;
}

Result<RuleSet> read_card(const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxRulesFile));
  const auto read = [&]() -> Result<RuleSet> {
    const Json json = RESHARD_TRY(parse_json(text));
    const Json* name = json.find("base");
    if (name == nullptr) return parse_rules(text);
    if (name->string() == nullptr) return fail(Code::corrupt, "base must be a text");
    RESHARD_TRY(files::check_file_name(*name->string()));
    const auto folder = std::filesystem::path(path).parent_path() / "bases";
    const RuleSet base = RESHARD_TRY(read_rules((folder / (*name->string() + ".json")).string()));
    return parse_rules(text, &base);
  };
  auto card = read();
  if (!card) return tl::unexpected(std::move(card).error().in(path));
  return card;
}

}  // namespace reshard
