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
constexpr std::size_t kMaxParts = 64, kMaxCuts = 16, kMaxKeys = 16, kMaxAxes = 4 * kMaxDims;
static_assert(kMaxRulePattern == files::kMaxFieldText);

bool is_axis_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && name.size() <= kMaxAxisName &&
         std::all_of(name.begin(), name.end(), allowed);
}

/// Texts go into messages, which are one line.
bool is_one_line(std::string_view text) {
  return std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

Result<std::string> line(const files::Fields& fields, std::string_view key) {
  auto text = RESHARD_TRY(fields.text(key));
  if (is_one_line(text)) return text;
  return fail(Code::corrupt, fmt::format("{}: {} must be without control characters, is {}",
                                         fields.where(), key, in_quotes(text)));
}

/// A number, or an expression.
Result<Expression> expression(const files::Fields& fields, std::string_view key, Index least) {
  const Json* json = fields.find(key);
  if (json != nullptr && json->string() != nullptr) {
    RESHARD_TRY(line(fields, key));
    auto parsed = Expression::parse(*json->string());
    if (!parsed) return tl::unexpected(std::move(parsed).error().in(fields.where()));
    return parsed;
  }
  return Expression(RESHARD_TRY(fields.integer(key, least, kMaxNumber)));
}

Result<std::optional<Expression>> expression_if(const files::Fields& fields, std::string_view key,
                                                Index least) {
  if (!fields.has(key)) return std::optional<Expression>();
  return std::optional(RESHARD_TRY(expression(fields, key, least)));
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

/// Parses one rule and checks that its parts are consistent.
class RuleParser {
 public:
  RuleParser(const files::Fields& fields, const std::vector<RuleSet::MeshAxis>& axes)
      : fields_(fields), axes_(axes) {}

  Result<Rule> parse() {
    RESHARD_TRY(read_part(fields_, rule_));
    const Json::Array others = RESHARD_TRY(fields_.list("with", kMaxParts));
    for (const Json& json : others) {
      const auto place = fmt::format("{}, part {}", fields_.where(), rule_.num_parts() + 1);
      const auto fields = RESHARD_TRY(files::Fields::of(
          json, place, {"match", "shared", "take", "dims", "each", "pad", "cuts"}));
      RulePart part;
      RESHARD_TRY(read_part(fields, part));
      rule_.with.push_back(std::move(part));
    }
    rule_.together = RESHARD_TRY(fields_.flag_or("together", false));
    rule_.interleave = RESHARD_TRY(expression_if(fields_, "interleave", 1));
    if (rule_.interleave && !rule_.together)
      return fail(Code::corrupt, fmt::format("{}: interleave needs together", fields_.where()));
    wildcards_ = left_in(rule_);
    RESHARD_TRY(check_parts());
    if (fields_.has("name")) rule_.name = RESHARD_TRY(line(fields_, "name"));
    RESHARD_TRY(check_local_name(rule_.name, rule_.match, wildcards_, fields_.where()));
    if (fields_.has("beside")) rule_.beside = RESHARD_TRY(line(fields_, "beside"));
    RESHARD_TRY(
        check_local_name(rule_.beside, rule_.match, wildcards_, fields_.where() + ", beside"));
    constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16};
    if (fields_.has("dtype"))
      rule_.dtype = kDTypes[RESHARD_TRY(fields_.word("dtype", {"float32", "bfloat16", "float16"}))];
    constexpr ValueMap kMaps[] = {ValueMap::identity, ValueMap::negated_exp, ValueMap::plus_one,
                                  ValueMap::minus_one};
    rule_.map = kMaps[RESHARD_TRY(
        fields_.word("map", {"identity", "negated_exp", "plus_one", "minus_one"}))];
    rule_.stack =
        static_cast<int>(RESHARD_TRY(fields_.integer_or("stack", 0, -kMaxDims, kMaxDims - 1)));
    rule_.omit = RESHARD_TRY(fields_.flag_or("omit", false));
    rule_.merged = RESHARD_TRY(dimensions(fields_, "merged", kMaxDims - 1));
    rule_.when = RESHARD_TRY(expression_if(fields_, "when", 0));
    used_ = cut_;
    for (const Json& where : RESHARD_TRY(fields_.list("where", kMaxDims)))
      RESHARD_TRY(add_where(where));
    return std::move(rule_);
  }

 private:
  /// The wildcards that name a local tensor: all but that of `each`.
  static int left_in(const RulePart& part) {
    return count_wildcards(part.match) - (part.each > 0 ? 1 : 0);
  }

  Result<> check_parts() const {
    for (const RulePart& part : rule_.with)
      if (left_in(part) != wildcards_)
        return fail(Code::corrupt,
                    fmt::format("{}: {} leaves {} wildcards and {} leaves {}: parts of one tensor "
                                "have the same",
                                fields_.where(), in_quotes(part.match), left_in(part),
                                in_quotes(rule_.match), wildcards_));
    for (const RulePart& part : rule_.with)
      if (rule_.together && !part.cuts.empty())
        return fail(Code::corrupt,
                    fmt::format("{}: cuts of {} must be the rule's, which cuts its parts together",
                                fields_.where(), in_quotes(part.match)));
    const bool one = rule_.with.empty() && rule_.each == 0;
    if (one || fields_.has("name") || fields_.has("omit")) return {};
    return fail(Code::corrupt, fmt::format("{}: name is missing, must name the tensor of several",
                                           fields_.where()));
  }

  Result<> read_part(const files::Fields& fields, RulePart& part) {
    part.match = RESHARD_TRY(line(fields, "match"));
    const int wildcards = count_wildcards(part.match);
    if (wildcards > kMaxWildcards)
      return fail(Code::corrupt,
                  fmt::format("{}: match {} has {} of * and #, at most {} are allowed",
                              fields.where(), in_quotes(part.match), wildcards, kMaxWildcards));
    part.shared = RESHARD_TRY(fields.flag_or("shared", false));
    part.each = static_cast<int>(RESHARD_TRY(fields.integer_or("each", 0, 1, wildcards)));
    part.dims = RESHARD_TRY(dimensions(fields, "dims", kMaxDims));
    for (std::size_t i = 0; i < part.dims.size(); ++i)
      if (std::ranges::find(part.dims, static_cast<int>(i)) == part.dims.end())
        return fail(Code::corrupt, fmt::format("{}: dims must list each dimension once, lacks {}",
                                               fields.where(), i));
    for (const Json& json : RESHARD_TRY(fields.list("take", kMaxDims)))
      RESHARD_TRY(add_take(fields, json, part));
    for (const Json& json : RESHARD_TRY(fields.list("pad", kMaxDims)))
      RESHARD_TRY(add_pad(fields, json, part));
    dims_.clear();
    used_.clear();
    for (const Json& json : RESHARD_TRY(fields.list("cuts", kMaxCuts)))
      RESHARD_TRY(add_cut(fields, json, part));
    cut_.insert(used_.begin(), used_.end());
    return {};
  }

  /// A list of different numbers of dimensions.
  static Result<std::vector<int>> dimensions(const files::Fields& fields, std::string_view key,
                                             int most) {
    std::vector<int> found;
    for (const Json& json : RESHARD_TRY(fields.list(key, static_cast<std::size_t>(most)))) {
      const auto dim = json.integer();
      if (!dim || *dim < 0 || *dim >= most ||
          std::ranges::find(found, static_cast<int>(*dim)) != found.end())
        return fail(Code::corrupt,
                    fmt::format("{}: {} must list different dimensions below {}, one is {}",
                                fields.where(), key, most, json.describe()));
      found.push_back(static_cast<int>(*dim));
    }
    return found;
  }

  Result<> add_take(const files::Fields& of, const Json& json, RulePart& part) const {
    const auto place = fmt::format("{}, take {}", of.where(), part.take.size() + 1);
    const auto fields =
        RESHARD_TRY(files::Fields::of(json, place, {"dim", "begin", "end", "period"}));
    RulePart::Take take;
    take.dim = static_cast<int>(RESHARD_TRY(fields.integer("dim", 0, kMaxDims - 1)));
    if (std::ranges::find(part.take, take.dim, &RulePart::Take::dim) != part.take.end())
      return fail(Code::corrupt, fmt::format("{}: dim {} is taken twice", place, take.dim));
    if (fields.has("begin")) take.begin = RESHARD_TRY(expression(fields, "begin", 0));
    take.end = RESHARD_TRY(expression(fields, "end", 0));
    take.period = RESHARD_TRY(expression_if(fields, "period", 1));
    part.take.push_back(std::move(take));
    return {};
  }

  Result<> add_pad(const files::Fields& of, const Json& json, RulePart& part) const {
    const auto place = fmt::format("{}, pad {}", of.where(), part.pad.size() + 1);
    const auto fields = RESHARD_TRY(files::Fields::of(json, place, {"dim", "multiple"}));
    RulePart::Pad pad;
    pad.dim = static_cast<int>(RESHARD_TRY(fields.integer("dim", -kMaxDims, kMaxDims - 1)));
    pad.multiple = RESHARD_TRY(expression(fields, "multiple", 1));
    part.pad.push_back(std::move(pad));
    return {};
  }

  /// Marks an axis as used. An axis that cut two dimensions would cover only the diagonal blocks.
  Result<> use_axis(const std::string& name, const std::string& where, bool once = true) {
    const auto known = std::find_if(axes_.begin(), axes_.end(),
                                    [&](const RuleSet::MeshAxis& a) { return a.name == name; });
    if (known == axes_.end()) {
      std::vector<std::string_view> names;
      for (const RuleSet::MeshAxis& axis : axes_) names.push_back(axis.name);
      return fail(Code::corrupt, fmt::format("{}: axis {} is not among the file's axes ({})", where,
                                             in_quotes(name), fmt::join(names, ", ")));
    }
    if (!used_.insert(name).second && once)
      return fail(Code::corrupt,
                  fmt::format("{}: axis {} is used twice; a rule may use each axis once", where,
                              in_quotes(name)));
    return {};
  }

  /// Adds a cut. Those with `when` may share a dim or axis: at most one applies, as the sizes say.
  Result<> add_cut(const files::Fields& of, const Json& json, RulePart& part) {
    const auto where = fmt::format("{}, cut {}", of.where(), part.cuts.size() + 1);
    const auto fields = RESHARD_TRY(files::Fields::of(
        json, where, {"dim", "axes", "rule", "combine", "granule", "even", "when"}));
    RulePart::Cut cut;
    cut.when = RESHARD_TRY(expression_if(fields, "when", 0));
    cut.dim = static_cast<int>(RESHARD_TRY(fields.integer("dim", -kMaxDims, kMaxDims - 1)));
    if (!dims_.insert(cut.dim).second && !cut.when)
      return fail(Code::corrupt, fmt::format("{}: dim {} is cut twice", where, cut.dim));
    for (const Json& axis : RESHARD_TRY(fields.list("axes", DimCut{}.axes.size()))) {
      if (axis.string() == nullptr)
        return fail(Code::corrupt, fmt::format("{}: axes must be a list of axis names, one is {}",
                                               where, axis.describe()));
      RESHARD_TRY(use_axis(*axis.string(), where, !cut.when));
      cut.axes.push_back(*axis.string());
    }
    if (cut.axes.empty())
      return fail(Code::corrupt,
                  fmt::format("{}: axes is missing, must name what cuts dim {}", where, cut.dim));
    constexpr CutRule kRules[] = {CutRule::balanced, CutRule::ceil, CutRule::spread};
    cut.rule = kRules[RESHARD_TRY(fields.word("rule", {"balanced", "ceil", "spread"}))];
    const auto combine = RESHARD_TRY(fields.word("combine", {"sequential", "flattened"}));
    cut.combine = combine == 0 ? DimCut::Combine::sequential : DimCut::Combine::flattened;
    if (fields.has("granule")) cut.granule = RESHARD_TRY(expression(fields, "granule", 1));
    cut.even = RESHARD_TRY(fields.flag_or("even", false));
    part.cuts.push_back(std::move(cut));
    return {};
  }

  Result<> add_where(const Json& json) {
    const auto place = fmt::format("{}, where {}", fields_.where(), rule_.where.size() + 1);
    const auto fields = RESHARD_TRY(files::Fields::of(
        json, place, {"axis", "at", "or_last", "number", "per", "of", "rest", "renumber"}));
    Rule::Where where;
    where.axis = RESHARD_TRY(fields.text("axis"));
    RESHARD_TRY(use_axis(where.axis, place));
    if (fields.has("at") == fields.has("number"))
      return fail(Code::corrupt, fmt::format("{}: must have either at or number", place));
    if (fields.has("at")) {
      for (const char* key : {"per", "of", "rest", "renumber"})
        if (fields.has(key))
          return fail(Code::corrupt,
                      fmt::format("{}: {} belongs to number, not to at", place, key));
      where.at = RESHARD_TRY(fields.integer("at", -kMaxAxis, kMaxAxis - 1));
      where.or_last = RESHARD_TRY(fields.flag_or("or_last", false));
    } else {
      if (fields.has("or_last"))
        return fail(Code::corrupt, fmt::format("{}: or_last belongs to at, not to number", place));
      if (wildcards_ == 0)
        return fail(Code::corrupt,
                    fmt::format("{}: number needs a # in match {}", place, in_quotes(rule_.match)));
      where.number = static_cast<int>(RESHARD_TRY(fields.integer("number", 1, wildcards_)));
      if (fields.has("per") && fields.has("of"))
        return fail(Code::corrupt, fmt::format("{}: must have either per or of", place));
      where.per = RESHARD_TRY(fields.integer_or("per", 1, 1, kMaxNumber));
      where.of = RESHARD_TRY(expression_if(fields, "of", 1));
      where.renumber = RESHARD_TRY(fields.flag_or("renumber", false));
      constexpr StageRest kRests[] = {StageRest::first, StageRest::last, StageRest::before_last};
      where.rest = kRests[RESHARD_TRY(fields.word("rest", {"first", "last", "before_last"}))];
    }
    rule_.where.push_back(std::move(where));
    return {};
  }

  const files::Fields& fields_;
  const std::vector<RuleSet::MeshAxis>& axes_;
  Rule rule_;
  int wildcards_ = 0;           ///< those that the name and `where` may use.
  std::set<std::string> used_;  ///< axes of this part.
  std::set<std::string> cut_;   ///< axes of all parts.
  std::set<int> dims_;
};

Result<> parse_keys(const files::Fields& root, RuleSet& set) {
  std::set<std::string> seen{"offset", "dtype"};
  for (const RuleSet::MeshAxis& axis : set.axes) seen.insert(axis.name);
  for (const Json& entry : RESHARD_TRY(root.list("keys", kMaxKeys))) {
    const auto place = fmt::format("key {}", set.keys.size() + 1);
    const auto fields = RESHARD_TRY(files::Fields::of(entry, place, {"name", "default"}));
    RuleSet::Key key{RESHARD_TRY(fields.text("name")),
                     RESHARD_TRY(fields.integer_or("default", 1, 0, kMaxAxis))};
    if (!is_axis_name(key.name) || !seen.insert(key.name).second)
      return fail(Code::corrupt,
                  fmt::format("{}: name {} is taken, or not of letters, digits and _", place,
                              in_quotes(key.name)));
    set.keys.push_back(std::move(key));
  }
  for (const Json& entry : RESHARD_TRY(root.list("require", kMaxKeys))) {
    const auto place = fmt::format("require {}", set.require.size() + 1);
    const auto fields = RESHARD_TRY(files::Fields::of(entry, place, {"that", "says"}));
    set.require.push_back(
        {RESHARD_TRY(expression(fields, "that", 0)), RESHARD_TRY(line(fields, "says"))});
  }
  return {};
}

Result<std::vector<std::string>> texts(const files::Fields& fields, std::string_view key) {
  std::vector<std::string> found;
  for (const Json& json : RESHARD_TRY(fields.list(key, kMaxKeys))) {
    if (json.string() == nullptr || json.string()->empty() ||
        json.string()->size() > files::kMaxFieldText || !is_one_line(*json.string()))
      return fail(Code::corrupt, fmt::format("{}: {} must list names, one is {}", fields.where(),
                                             key, json.describe()));
    found.push_back(*json.string());
  }
  return found;
}

Result<std::optional<RuleSet::Card>> parse_card(const files::Fields& root) {
  if (!root.has("card")) return std::optional<RuleSet::Card>();
  const auto fields = RESHARD_TRY(
      root.object("card", {"framework", "release", "architectures", "model_types", "proof"}));
  RuleSet::Card card;
  card.framework = RESHARD_TRY(line(fields, "framework"));
  card.release = RESHARD_TRY(line(fields, "release"));
  card.architectures = RESHARD_TRY(texts(fields, "architectures"));
  card.model_types = RESHARD_TRY(texts(fields, "model_types"));
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

Result<RuleSet> parse_rules(std::string_view text) {
  const Json json = RESHARD_TRY(parse_json(text));
  const auto root = RESHARD_TRY(
      files::Fields::of(json, "the file", {"axes", "keys", "require", "dtype", "rules", "card"}));
  RuleSet set;
  set.axes = RESHARD_TRY(parse_axes(root));
  RESHARD_TRY(parse_keys(root, set));
  set.card = RESHARD_TRY(parse_card(root));
  set.config_dtype = RESHARD_TRY(root.word("dtype", {"model", "config"})) == 1;
  const auto rules = RESHARD_TRY(root.list("rules", kMaxRules));
  if (rules.empty())
    return fail(Code::corrupt,
                fmt::format("rules is missing or empty, must be a list of {{\"match\": ...}}"));
  for (const Json& entry : rules) {
    const auto fields = RESHARD_TRY(files::Fields::of(
        entry, fmt::format("rule {}", set.rules.size() + 1),
        {"match", "shared", "take", "dims", "each", "pad", "cuts", "with", "name", "dtype", "stack",
         "together", "interleave", "beside", "map", "merged", "omit", "when", "where"}));
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
