// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/rules_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "reshard/io/files/json_fields.h"

namespace reshard {
namespace {

constexpr std::size_t kMaxRulesFile = std::size_t{16} << 20;
constexpr Index kMaxAxis = Index{1} << 20;
constexpr Index kMaxNumber = Index{1} << 40;
constexpr std::size_t kMaxAxisName = 32;
static_assert(kMaxRulePattern == files::kMaxFieldText);

bool is_axis_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && name.size() <= kMaxAxisName &&
         std::all_of(name.begin(), name.end(), allowed);
}

Result<std::vector<Axis>> parse_axes(const files::Fields& root) {
  std::vector<Axis> axes;
  std::set<std::string> seen{"offset", "dtype"};  // keys of every layout
  for (const Json& entry : RESHARD_TRY(root.list("axes", kMaxDims))) {
    const auto fields = RESHARD_TRY(
        files::Fields::of(entry, fmt::format("axis {}", axes.size() + 1), {"name", "size"}));
    Axis axis{RESHARD_TRY(fields.text("name")), RESHARD_TRY(fields.integer("size", 1, kMaxAxis))};
    if (!is_axis_name(axis.name))
      return fail(Code::corrupt,
                  fmt::format("{}: name must be letters, digits and _, at most {}, is {}",
                              fields.where(), kMaxAxisName, in_quotes(axis.name)));
    if (!seen.insert(axis.name).second)
      return fail(Code::corrupt,
                  fmt::format("{}: name {} is taken", fields.where(), in_quotes(axis.name)));
    axes.push_back(std::move(axis));
  }
  return axes;
}

/// Parses one rule and checks that its parts are consistent.
class RuleParser {
 public:
  RuleParser(const files::Fields& fields, const std::vector<Axis>& axes)
      : fields_(fields), axes_(axes) {}

  Result<Rule> parse() {
    rule_.match = RESHARD_TRY(fields_.text("match"));
    if (count_wildcards(rule_.match) > kMaxWildcards)
      return fail(
          Code::corrupt,
          fmt::format("{}: match {} has {} of * and #, at most {} are allowed", fields_.where(),
                      in_quotes(rule_.match), count_wildcards(rule_.match), kMaxWildcards));
    if (fields_.has("name")) rule_.name = RESHARD_TRY(fields_.text("name"));
    RESHARD_TRY(check_local_name(rule_.name, rule_.match, fields_.where()));
    constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
    if (fields_.has("dtype"))
      rule_.dtype = kDTypes[RESHARD_TRY(fields_.word("dtype", {"float32", "bfloat16", "float16"}))];
    for (const Json& cut : RESHARD_TRY(fields_.list("cuts", kMaxDims))) RESHARD_TRY(add_cut(cut));
    for (const Json& where : RESHARD_TRY(fields_.list("where", kMaxDims)))
      RESHARD_TRY(add_where(where));
    return std::move(rule_);
  }

 private:
  /// Marks an axis as used. An axis that cut two dimensions would cover only the diagonal blocks.
  Result<> use_axis(const std::string& name, const std::string& where) {
    const auto known =
        std::find_if(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.name == name; });
    if (known == axes_.end()) {
      std::vector<std::string_view> names;
      for (const Axis& axis : axes_) names.push_back(axis.name);
      return fail(Code::corrupt, fmt::format("{}: axis {} is not among the file's axes ({})", where,
                                             in_quotes(name), fmt::join(names, ", ")));
    }
    if (!used_.insert(name).second)
      return fail(Code::corrupt,
                  fmt::format("{}: axis {} is used twice; a rule may use each axis once", where,
                              in_quotes(name)));
    return {};
  }

  Result<> add_cut(const Json& json) {
    const auto where = fmt::format("{}, cut {}", fields_.where(), rule_.cuts.size() + 1);
    const auto fields =
        RESHARD_TRY(files::Fields::of(json, where, {"dim", "axes", "rule", "combine", "granule"}));
    Rule::Cut cut;
    cut.dim = static_cast<int>(RESHARD_TRY(fields.integer("dim", -kMaxDims, kMaxDims - 1)));
    if (!dims_.insert(cut.dim).second)
      return fail(Code::corrupt, fmt::format("{}: dim {} is cut twice", where, cut.dim));
    for (const Json& axis : RESHARD_TRY(fields.list("axes", DimCut{}.axes.size()))) {
      if (axis.string() == nullptr)
        return fail(Code::corrupt, fmt::format("{}: axes must be a list of axis names, one is {}",
                                               where, axis.describe()));
      RESHARD_TRY(use_axis(*axis.string(), where));
      cut.axes.push_back(*axis.string());
    }
    if (cut.axes.empty())
      return fail(Code::corrupt,
                  fmt::format("{}: axes is missing, must name what cuts dim {}", where, cut.dim));
    constexpr CutRule kRules[] = {CutRule::balanced, CutRule::ceil, CutRule::spread};
    cut.rule = kRules[RESHARD_TRY(fields.word("rule", {"balanced", "ceil", "spread"}))];
    const auto combine = RESHARD_TRY(fields.word("combine", {"sequential", "flattened"}));
    cut.combine = combine == 0 ? DimCut::Combine::sequential : DimCut::Combine::flattened;
    cut.granule = RESHARD_TRY(fields.integer_or("granule", 1, 1, kMaxNumber));
    rule_.cuts.push_back(std::move(cut));
    return {};
  }

  Result<> add_where(const Json& json) {
    const auto place = fmt::format("{}, where {}", fields_.where(), rule_.where.size() + 1);
    const auto fields =
        RESHARD_TRY(files::Fields::of(json, place, {"axis", "at", "number", "per"}));
    Rule::Where where;
    where.axis = RESHARD_TRY(fields.text("axis"));
    RESHARD_TRY(use_axis(where.axis, place));
    if (fields.has("at") == fields.has("number"))
      return fail(Code::corrupt, fmt::format("{}: must have either at or number", place));
    if (fields.has("at")) {
      if (fields.has("per"))
        return fail(Code::corrupt, fmt::format("{}: per belongs to number, not to at", place));
      where.at = RESHARD_TRY(fields.integer("at", 0, kMaxAxis - 1));
    } else {
      if (count_wildcards(rule_.match) == 0)
        return fail(Code::corrupt,
                    fmt::format("{}: number needs a # in match {}", place, in_quotes(rule_.match)));
      where.number =
          static_cast<int>(RESHARD_TRY(fields.integer("number", 1, count_wildcards(rule_.match))));
      where.per = RESHARD_TRY(fields.integer_or("per", 1, 1, kMaxNumber));
    }
    rule_.where.push_back(std::move(where));
    return {};
  }

  const files::Fields& fields_;
  const std::vector<Axis>& axes_;
  Rule rule_;
  std::set<std::string> used_;
  std::set<int> dims_;
};

}  // namespace

int count_wildcards(std::string_view pattern) {
  return static_cast<int>(
      std::count_if(pattern.begin(), pattern.end(), [](char c) { return c == '*' || c == '#'; }));
}

Result<> check_local_name(std::string_view name, std::string_view match, std::string_view where) {
  for (std::size_t i = 0; i + 1 < name.size(); ++i) {
    const int digit = name[i + 1] - '0';
    if (name[i] != '$' || digit < 0 || digit > 9) continue;
    if (digit == 0 || digit > count_wildcards(match))
      return fail(Code::corrupt,
                  fmt::format("{}: name uses ${}, but match {} has {} of * and #", where, digit,
                              in_quotes(match), count_wildcards(match)));
  }
  return {};
}

Result<RuleSet> parse_rules(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text));
  const auto root = RESHARD_TRY(files::Fields::of(json, "the file", {"axes", "rules"}));
  RuleSet set;
  set.axes = RESHARD_TRY(parse_axes(root));
  const auto rules = RESHARD_TRY(root.list("rules", kMaxRules));
  if (rules.empty())
    return fail(Code::corrupt,
                fmt::format("rules is missing or empty, must be a list of {{\"match\": ...}}"));
  for (const Json& entry : rules) {
    const auto fields =
        RESHARD_TRY(files::Fields::of(entry, fmt::format("rule {}", set.rules.size() + 1),
                                      {"match", "name", "dtype", "cuts", "where"}));
    set.rules.push_back(RESHARD_TRY(RuleParser(fields, set.axes).parse()));
  }
  return set;
}

Result<RuleSet> read_rules(const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxRulesFile));
  auto rules = parse_rules(text);
  if (!rules) return tl::unexpected(std::move(rules).error().in(path));
  return rules;
}

}  // namespace reshard
