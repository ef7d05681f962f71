// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/rule_parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/io/rules_file.h"

namespace reshard::io {
namespace {

constexpr Index kMaxAxis = Index{1} << 20;
constexpr Index kMaxNumber = Index{1} << 40;
constexpr std::size_t kMaxParts = 64, kMaxCuts = 16;

/// A list of different numbers of dimensions.
Result<std::vector<int>> dimensions(const files::Fields& fields, std::string_view key, int most) {
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

}  // namespace

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

Result<std::vector<Expression>> expressions(const files::Fields& fields, std::string_view key,
                                            std::size_t most) {
  std::vector<Expression> found;
  for (const Json& json : RESHARD_TRY(fields.list(key, most))) {
    const auto number = json.integer();
    const std::string* text = json.string();
    if (text == nullptr ? !number || *number < 0 || *number > kMaxNumber : !is_one_line(*text))
      return fail(Code::corrupt, fmt::format("{}: {} must list numbers or expressions, one is {}",
                                             fields.where(), key, json.describe()));
    if (text == nullptr) {
      found.emplace_back(*number);
      continue;
    }
    auto parsed = Expression::parse(*text);
    if (!parsed) return tl::unexpected(std::move(parsed).error().in(fields.where()));
    found.push_back(*std::move(parsed));
  }
  if (!fields.has(key) || !found.empty()) return found;
  return fail(Code::corrupt, fmt::format("{}: {} is empty", fields.where(), key));
}

Result<std::optional<Expression>> expression_if(const files::Fields& fields, std::string_view key,
                                                Index least) {
  if (!fields.has(key)) return std::optional<Expression>();
  return std::optional(RESHARD_TRY(expression(fields, key, least)));
}

namespace {

/// A pattern as a name: the wildcards after the first `before` are "$1" and so on.
std::string numbered(std::string_view pattern, int before) {
  std::string name;
  for (const char c : pattern)
    if (c == '#' || c == '*')
      name += fmt::format("${}", ++before);
    else
      name += c;
  return name;
}

Result<std::optional<Expression>> both(const std::optional<Expression>& a,
                                       std::optional<Expression> b) {
  if (!a) return b;
  if (!b) return a;
  return std::optional(
      RESHARD_TRY(Expression::parse(fmt::format("({}) && ({})", a->text(), b->text()))));
}

}  // namespace

Result<files::Fields> RuleParser::fields_of(const Json& json, std::string where) {
  return files::Fields::of(
      json, std::move(where),
      {"match",      "shared", "shape", "apart",  "take",    "dims",    "each",
       "pad",        "cuts",   "with",  "name",   "dtype",   "stack",   "together",
       "interleave", "beside", "map",   "merged", "omit",    "when",    "where",
       "in",         "from",   "below", "of",     "experts", "reverse", "swap"});
}

Result<Rule> RuleParser::parse() {
  RESHARD_TRY(read_part(fields_, rule_));
  const Json::Array others = RESHARD_TRY(fields_.list("with", kMaxParts));
  for (const Json& json : others) {
    const auto place = fmt::format("{}, part {}", fields_.where(), rule_.num_parts() + 1);
    const auto fields =
        RESHARD_TRY(files::Fields::of(json, place,
                                      {"match", "shared", "shape", "apart", "take", "dims", "each",
                                       "experts", "behind", "pad", "cuts", "when"}));
    RulePart part;
    RESHARD_TRY(read_part(fields, part));
    part.behind = RESHARD_TRY(fields.flag_or("behind", false));
    rule_.with.push_back(std::move(part));
  }
  wildcards_ = left_in(rule_);
  rule_.omit = RESHARD_TRY(fields_.flag_or("omit", false));
  RESHARD_TRY(check_parts());
  RESHARD_TRY(read_texts());
  RESHARD_TRY(read_values());
  RESHARD_TRY(read_place());
  return std::move(rule_);
}

Result<Rule> RuleParser::parse_block() {
  rule_.match = RESHARD_TRY(line(fields_, "match"));
  wildcards_ = count_wildcards(rule_.match);
  rule_.when = RESHARD_TRY(expression_if(fields_, "when", 0));
  RESHARD_TRY(read_texts());
  RESHARD_TRY(read_place());
  return std::move(rule_);
}

/// Reads the names of other tensors, which "$1" and so on are in.
Result<> RuleParser::read_texts() {
  const Rule* common = block_ != nullptr ? &block_->common : nullptr;
  const std::string front = common == nullptr ? "" : numbered(common->match, 0);
  const auto own_match =
      std::string_view(rule_.match)
          .substr(common == nullptr ? 0 : std::min(rule_.match.size(), common->match.size()));
  if (fields_.has("name")) rule_.name = RESHARD_TRY(line(fields_, "name"));
  if (common != nullptr && !rule_.omit && !common->name.empty())
    rule_.name =
        common->name +
        (fields_.has("name") ? rule_.name : numbered(own_match, count_wildcards(common->match)));
  if (fields_.has("beside")) rule_.beside = front + RESHARD_TRY(line(fields_, "beside"));
  if (fields_.has("of")) rule_.of = RESHARD_TRY(line(fields_, "of"));
  for (const auto& [text, what] : {std::pair(&rule_.name, ""), std::pair(&rule_.beside, ", beside"),
                                   std::pair(&rule_.of, ", of")})
    RESHARD_TRY(check_local_name(*text, rule_.match, wildcards_, fields_.where() + what));
  return {};
}

/// Reads how the local tensor differs from its parts.
Result<> RuleParser::read_values() {
  rule_.together = RESHARD_TRY(fields_.flag_or("together", false));
  rule_.interleave = RESHARD_TRY(expression_if(fields_, "interleave", 1));
  rule_.reverse = RESHARD_TRY(expression_if(fields_, "reverse", 0));
  if (rule_.interleave && !rule_.together)
    return fail(Code::corrupt, fmt::format("{}: interleave needs together", fields_.where()));
  for (const RulePart& part : rule_.with)
    if (rule_.together && !part.cuts.empty())
      return fail(Code::corrupt,
                  fmt::format("{}: cuts of {} must be the rule's, which cuts its parts together",
                              fields_.where(), in_quotes(part.match)));
  constexpr std::optional<DType> kDTypes[] = {DType::f32, DType::bf16, DType::f16, std::nullopt};
  if (fields_.has("dtype")) {
    rule_.dtype =
        kDTypes[RESHARD_TRY(fields_.word("dtype", {"float32", "bfloat16", "float16", "config"}))];
    rule_.config_dtype = !rule_.dtype;
  }
  constexpr ValueMap kMaps[] = {ValueMap::identity, ValueMap::negated_exp, ValueMap::plus_one,
                                ValueMap::minus_one};
  rule_.map =
      kMaps[RESHARD_TRY(fields_.word("map", {"identity", "negated_exp", "plus_one", "minus_one"}))];
  rule_.stack =
      static_cast<int>(RESHARD_TRY(fields_.integer_or("stack", 0, -kMaxDims, kMaxDims - 1)));
  rule_.merged = RESHARD_TRY(dimensions(fields_, "merged", kMaxDims - 1));
  return fields_.has("swap") ? add_swap() : Result<>{};
}

Result<> RuleParser::add_swap() {
  const auto fields = RESHARD_TRY(fields_.object("swap", {"dims", "when"}));
  const auto dims = RESHARD_TRY(dimensions(fields, "dims", kMaxDims));
  if (dims.size() != 2)
    return fail(Code::corrupt, fmt::format("{}: dims must list two dimensions", fields.where()));
  rule_.swap = Rule::Swap{dims[0], dims[1]};
  if (const auto when = RESHARD_TRY(expression_if(fields, "when", 0))) rule_.swap->when = *when;
  return {};
}

/// Reads which tensors the rule is for, beyond their names, and which ranks hold the local one.
Result<> RuleParser::read_place() {
  rule_.from = RESHARD_TRY(expression_if(fields_, "from", 0));
  rule_.below = RESHARD_TRY(expression_if(fields_, "below", 0));
  if ((rule_.from || rule_.below) && wildcards_ == (rule_.apart ? 1 : 0))
    return fail(Code::corrupt, fmt::format("{}: from and below need a # in match {}",
                                           fields_.where(), in_quotes(rule_.match)));
  used_ = cut_;
  if (block_ != nullptr) {
    if (!rule_.from) rule_.from = block_->common.from;
    if (!rule_.below) rule_.below = block_->common.below;
    rule_.when = RESHARD_TRY(both(block_->common.when, std::move(rule_.when)));
    for (const Rule::Where& where : block_->common.where) {
      RESHARD_TRY(use_axis(where.axis, fields_.where()));
      rule_.where.push_back(where);
    }
  }
  for (const Json& where : RESHARD_TRY(fields_.list("where", kMaxDims)))
    RESHARD_TRY(add_where(where));
  return {};
}

/// The wildcards that name a local tensor: all but that of `each`, and the index of `apart`.
int RuleParser::left_in(const RulePart& part) {
  return count_wildcards(part.match) - (part.each > 0 ? 1 : 0) + (part.apart ? 1 : 0);
}

Result<> RuleParser::check_parts() const {
  for (const RulePart& part : rule_.with)
    if (left_in(part) != wildcards_)
      return fail(Code::corrupt,
                  fmt::format("{}: {} leaves {} wildcards and {} leaves {}: parts of one tensor "
                              "have the same",
                              fields_.where(), in_quotes(part.match), left_in(part),
                              in_quotes(rule_.match), wildcards_));
  for (std::size_t k = 0; k < rule_.num_parts(); ++k) {
    const RulePart& part = rule_.part(k);
    if (part.apart != rule_.apart || (part.apart && (part.each > 0 || part.experts)))
      return fail(Code::corrupt, fmt::format("{}: apart must be of all parts or of none, and not "
                                             "with each or experts",
                                             fields_.where()));
  }
  for (std::size_t k = 0; k < rule_.with.size(); ++k) RESHARD_TRY(check_further(rule_.with[k], k));
  const bool one = rule_.with.empty() && rule_.each == 0 && !rule_.apart;
  if (one || fields_.has("name") || rule_.omit) return {};
  return fail(Code::corrupt, fmt::format("{}: name is missing, must name the tensor of several{}",
                                         fields_.where(), rule_.apart ? " or of each index" : ""));
}

/// A part behind the experts of another is of their parts, and has no cuts.
Result<> RuleParser::check_further(const RulePart& part, std::size_t at) const {
  if (!part.behind) return {};
  const RulePart& before = rule_.part(at);
  if (before.each > 0 && before.take.empty() && !before.behind && part.each == 0 &&
      part.cuts.empty() && part.take.empty())
    return {};
  return fail(Code::corrupt,
              fmt::format("{}: {} is behind {}, which must have each and no take, and has no each, "
                          "take and cuts of its own",
                          fields_.where(), in_quotes(part.match), in_quotes(before.match)));
}

Result<> RuleParser::read_part(const files::Fields& fields, RulePart& part) {
  part.match = RESHARD_TRY(line(fields, "match"));
  if (block_ != nullptr) part.match = block_->common.match + part.match;
  const int wildcards = count_wildcards(part.match);
  if (wildcards > kMaxWildcards)
    return fail(Code::corrupt,
                fmt::format("{}: match {} has {} of * and #, at most {} are allowed",
                            fields.where(), in_quotes(part.match), wildcards, kMaxWildcards));
  part.shared = RESHARD_TRY(fields.flag_or("shared", false));
  part.shape = RESHARD_TRY(expressions(fields, "shape", kMaxDims));
  part.apart = RESHARD_TRY(fields.flag_or("apart", false));
  part.experts = RESHARD_TRY(fields.flag_or("experts", false));
  part.when = RESHARD_TRY(expression_if(fields, "when", 0));
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

Result<> RuleParser::add_take(const files::Fields& of, const Json& json, RulePart& part) const {
  const auto place = fmt::format("{}, take {}", of.where(), part.take.size() + 1);
  const auto fields =
      RESHARD_TRY(files::Fields::of(json, place, {"dim", "begin", "end", "period", "turns"}));
  RulePart::Take take;
  take.dim = static_cast<int>(RESHARD_TRY(fields.integer("dim", 0, kMaxDims - 1)));
  if (std::ranges::find(part.take, take.dim, &RulePart::Take::dim) != part.take.end())
    return fail(Code::corrupt, fmt::format("{}: dim {} is taken twice", place, take.dim));
  if (fields.has("begin")) take.begin = RESHARD_TRY(expression(fields, "begin", 0));
  take.end = RESHARD_TRY(expression(fields, "end", 0));
  take.period = RESHARD_TRY(expression_if(fields, "period", 1));
  take.turns = RESHARD_TRY(expression_if(fields, "turns", 1));
  part.take.push_back(std::move(take));
  return {};
}

Result<> RuleParser::add_pad(const files::Fields& of, const Json& json, RulePart& part) const {
  const auto place = fmt::format("{}, pad {}", of.where(), part.pad.size() + 1);
  const auto fields = RESHARD_TRY(files::Fields::of(json, place, {"dim", "multiple"}));
  RulePart::Pad pad;
  pad.dim = static_cast<int>(RESHARD_TRY(fields.integer("dim", -kMaxDims, kMaxDims - 1)));
  pad.multiple = RESHARD_TRY(expression(fields, "multiple", 1));
  part.pad.push_back(std::move(pad));
  return {};
}

/// Marks an axis as used. An axis that cut two dimensions would cover only the diagonal blocks.
Result<> RuleParser::use_axis(const std::string& name, const std::string& where, bool once) {
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
Result<> RuleParser::add_cut(const files::Fields& of, const Json& json, RulePart& part) {
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

Result<> RuleParser::add_where(const Json& json) {
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
        return fail(Code::corrupt, fmt::format("{}: {} belongs to number, not to at", place, key));
    where.at = RESHARD_TRY(fields.integer("at", -kMaxAxis, kMaxAxis - 1));
    const Json* last = fields.find("or_last");
    if (last != nullptr && last->string() != nullptr)
      where.or_last = RESHARD_TRY(expression(fields, "or_last", 0));
    else if (RESHARD_TRY(fields.flag_or("or_last", false)))
      where.or_last = 1;
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

}  // namespace reshard::io
