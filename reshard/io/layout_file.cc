// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/layout_file.h"

#include <fmt/format.h>

#include <charconv>

#include "reshard/io/files/disk.h"
#include "reshard/io/files/json_fields.h"

namespace reshard {
namespace {

constexpr std::string_view kFormat = "reshard layout";
constexpr Index kVersion = 1;
constexpr JsonLimits kLimits{.bytes = kMaxLayoutFile, .values = std::size_t{4} << 20, .depth = 8};
constexpr std::size_t kMaxEntries = std::size_t{1} << 20;
/// Words of all rank sets together; a short text can name many ranks.
constexpr std::size_t kMaxRankWords = std::size_t{1} << 24;
constexpr Index kMaxDim = Index{1} << 50;

/// Reads numbers and signs from the front of a text.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool done() const { return text_.empty(); }
  /// Takes `sign` if it is next.
  bool take(char sign) {
    if (text_.empty() || text_.front() != sign) return false;
    text_.remove_prefix(1);
    return true;
  }
  /// A whole number from 0 to `most`, or none.
  std::optional<Index> number(Index most) {
    Index value = 0;
    const auto [stop, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0 || value > most) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(stop - text_.data()));
    return value;
  }
  /// Numbers with commas between them: as many as there are, up to kMaxDims.
  std::optional<Dims> numbers(Index most) {
    Dims out;
    do {
      const auto value = number(most);
      if (!value || out.size() == kMaxDims) return std::nullopt;
      out.push_back(*value);
    } while (take(','));
    return out;
  }

 private:
  std::string_view text_;
};

std::optional<RankSet> parse_ranks(std::string_view text) {
  RankSet ranks;
  if (text.empty()) return ranks;
  Scanner scan(text);
  Index next = 0;
  do {
    const auto begin = scan.number(kMaxExplicitRanks - 1);
    const auto last = scan.take('-') ? scan.number(kMaxExplicitRanks - 1) : begin;
    if (!begin || !last || *begin < next || *last < *begin) return std::nullopt;
    ranks = ranks | RankSet::range(*begin, *last + 1);
    next = *last + 1;
  } while (scan.take(','));
  return scan.done() ? std::optional(ranks) : std::nullopt;
}

std::string ranks_text(const RankSet& ranks) {
  std::string text;
  const std::vector<Rank> all = ranks.members();
  for (std::size_t i = 0, begin = 0; i < all.size(); ++i) {
    if (i + 1 < all.size() && all[i + 1].value() == all[i].value() + 1) continue;
    if (!text.empty()) text += ',';
    text += fmt::format("{}", all[begin].value());
    if (i > begin) text += fmt::format("-{}", all[i].value());
    begin = i + 1;
  }
  return text;
}

/// A part is TENSOR BOX @ AT, then, where they differ from the usual, > DIMS and * STEPS:
/// "17[0,4)x[0,8)@4,0", "17[0,4)x[0,8)@0,0,0>1,2*2,1". DIMS: usually the last full dimensions.
/// STEPS: usually 1.
int usual_dim(int i, int rank, int full) { return full - rank + i; }

std::string part_text(const PlacedBox& p) {
  std::string text = fmt::format("{}", p.tensor.value());
  const int rank = p.box.rank();
  for (int i = 0; i < rank; ++i)
    text += fmt::format("{}[{},{})", i == 0 ? "" : "x", p.box[i].begin(), p.box[i].end());
  char sign = '@';
  for (Index at : p.at) {
    text += fmt::format("{}{}", sign, at);
    sign = ',';
  }
  bool usual_dims = true, usual_steps = true;
  for (int i = 0; i < rank; ++i) {
    usual_dims &= p.dims[static_cast<std::size_t>(i)] == usual_dim(i, rank, p.at.size());
    usual_steps &= p.step(i) == 1;
  }
  for (int i = 0; i < rank && !usual_dims; ++i)
    text += fmt::format("{}{}", i == 0 ? '>' : ',', p.dims[static_cast<std::size_t>(i)]);
  for (int i = 0; i < rank && !usual_steps; ++i)
    text += fmt::format("{}{}", i == 0 ? '*' : ',', p.step(i));
  return text;
}

std::optional<Box> parse_box(Scanner& scan) {
  std::array<Interval, kMaxDims> dims;
  std::size_t rank = 0;
  while (scan.take(rank == 0 ? '[' : 'x')) {
    if (rank > 0 && !scan.take('[')) return std::nullopt;
    const auto begin = scan.number(kMaxDim);
    if (!begin || !scan.take(',')) return std::nullopt;
    const auto end = scan.number(kMaxDim);
    if (!end || *end <= *begin || !scan.take(')') || rank == dims.size()) return std::nullopt;
    dims[rank++] = Interval{*begin, *end};
  }
  return Box(std::span<const Interval>(dims.data(), rank));
}

std::optional<PlacedBox> parse_part(std::string_view text, int full) {
  Scanner scan(text);
  PlacedBox p;
  const auto tensor = scan.number(std::numeric_limits<TensorId::rep>::max());
  const auto box = parse_box(scan);
  if (!tensor || !box || box->rank() > full) return std::nullopt;
  p.tensor = TensorId(static_cast<TensorId::rep>(*tensor));
  p.box = *box;
  if (scan.take('@')) {
    const auto at = scan.numbers(kMaxDim);
    if (!at || at->size() != full) return std::nullopt;
    p.at = *at;
  }
  Dims dims, steps = Dims::filled(box->rank(), 1);
  for (int i = 0; i < box->rank(); ++i) dims.push_back(usual_dim(i, box->rank(), full));
  for (auto [sign, most, into] :
       {std::tuple('>', Index{kMaxDims - 1}, &dims), std::tuple('*', Index{1} << 15, &steps)}) {
    if (!scan.take(sign)) continue;
    const auto numbers = scan.numbers(most);
    if (!numbers || numbers->size() != box->rank()) return std::nullopt;
    *into = *numbers;
  }
  for (int i = 0; i < box->rank(); ++i) {
    if (steps[i] < 1) return std::nullopt;
    p.dims[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(dims[i]);
    p.gaps[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(steps[i] - 1);
  }
  return scan.done() && p.at.size() == full ? std::optional(p) : std::nullopt;
}

Result<Dims> parse_shape(const files::Fields& fields) {
  Dims shape;
  for (const Json& size : RESHARD_TRY(fields.list("shape", kMaxDims))) {
    const auto n = size.integer();
    if (!n || *n < 0 || *n > kMaxDim)
      return fail(Code::corrupt, fmt::format("{}: shape must be whole numbers, one is {}",
                                             fields.where(), size.describe()));
    shape.push_back(*n);
  }
  return shape;
}

/// Dimension k of `merged` is one dimension of the stored tensor together with k + 1.
Result<MergedDims> parse_merged(const files::Fields& fields, const Dims& shape) {
  MergedDims merged;
  for (const Json& dim : RESHARD_TRY(fields.list("merged", kMaxDims))) {
    const auto k = dim.integer();
    if (!k || *k < 0 || *k + 1 >= shape.size())
      return fail(Code::corrupt, fmt::format("{}: merged must be dimensions before the last, one "
                                             "is {}",
                                             fields.where(), dim.describe()));
    merged.bits = static_cast<std::uint8_t>(merged.bits | 1U << *k);
  }
  return merged;
}

Result<DType> parse_dtype(const files::Fields& fields) {
  const auto dtype = dtype_from_name(RESHARD_TRY(fields.text("dtype")));
  if (!dtype)
    return fail(Code::corrupt, fmt::format("{}: dtype must be one of safetensors, such as \"BF16\"",
                                           fields.where()));
  return *dtype;
}

Result<std::string> parse_name(const Json& entry, const std::string& where) {
  const Json* value = entry.find("name");
  if (value == nullptr || value->string() == nullptr || value->string()->empty())
    return fail(Code::corrupt, fmt::format("{}: name must be a string, {}", where, is_what(value)));
  return *value->string();
}

Result<bool> parse_flag(const Json& entry, const char* key, const std::string& where) {
  const Json* value = entry.find(key);
  if (value == nullptr) return false;
  if (value->boolean() == nullptr)
    return fail(Code::corrupt,
                fmt::format("{}: {} must be true or false, is {}", where, key, value->describe()));
  return *value->boolean();
}

class FileParser {
 public:
  Result<ExplicitLayout> parse(const Json& json) {
    const auto root = RESHARD_TRY(files::Fields::of(
        json, "the file",
        {"format", "version", "name", "tensors", "ranks", "omitted", "local_tensors"}));
    if (RESHARD_TRY(root.text("format")) != kFormat)
      return fail(Code::corrupt, fmt::format("format must be \"{}\"", kFormat));
    if (const Index version = RESHARD_TRY(root.integer("version", 0, Index{1} << 40));
        version != kVersion)
      return fail(Code::unsupported,
                  fmt::format("version {} of the layout file; known is {}", version, kVersion));
    out_.name = RESHARD_TRY(parse_name(json, "the file"));
    for (const Json& entry : RESHARD_TRY(root.list("tensors", kMaxEntries)))
      RESHARD_TRY(add_tensor(entry));
    out_.tensors = std::make_shared<const ModelSpec>(std::move(tensors_));
    out_.ranks = RESHARD_TRY(ranks(json, "the file"));
    for (const Json& entry : RESHARD_TRY(root.list("omitted", kMaxEntries)))
      RESHARD_TRY(add_omitted(entry));
    for (const Json& entry : RESHARD_TRY(root.list("local_tensors", kMaxEntries)))
      RESHARD_TRY(add_local(entry));
    return std::move(out_);
  }

 private:
  Result<> add_tensor(const Json& entry) {
    const auto where = fmt::format("tensor {}", tensors_.size() + 1);
    const auto fields =
        RESHARD_TRY(files::Fields::of(entry, where, {"name", "dtype", "shape", "merged"}));
    const Dims shape = RESHARD_TRY(parse_shape(fields));
    auto added =
        tensors_.add(RESHARD_TRY(parse_name(entry, where)), shape, RESHARD_TRY(parse_dtype(fields)),
                     RESHARD_TRY(parse_merged(fields, shape)));
    if (!added) return fail(Code::corrupt, fmt::format("{}: {}", where, added.error().message));
    return {};
  }

  Result<> add_omitted(const Json& entry) {
    const auto id = entry.string() ? out_.tensors->find(*entry.string()) : std::nullopt;
    if (!id || (!out_.omitted.empty() && !(out_.omitted.back() < *id)))
      return fail(Code::corrupt, fmt::format("omitted must be names of tensors in their order, one "
                                             "is {}",
                                             entry.describe()));
    out_.omitted.push_back(*id);
    return {};
  }

  Result<RankSet> ranks(const Json& entry, const std::string& where) {
    const Json* value = entry.find("ranks");
    const auto set = value && value->string() ? parse_ranks(*value->string()) : std::nullopt;
    if (!set)
      return fail(Code::corrupt, fmt::format("{}: ranks must be ascending numbers below {}, such "
                                             "as \"0-3,8\", {}",
                                             where, kMaxExplicitRanks, is_what(value)));
    if (!set->empty()) rank_words_ += set->members().back().index() / 64 + 1;
    if (rank_words_ > kMaxRankWords)
      return fail(Code::corrupt,
                  fmt::format("{}: the ranks of all tensors together are too many", where));
    return *set;
  }

  Result<> add_local(const Json& entry) {
    const auto where = fmt::format("local tensor {}", out_.locals.size() + 1);
    const auto fields = RESHARD_TRY(files::Fields::of(
        entry, where,
        {"name", "ranks", "dtype", "shape", "merged", "padded", "map", "casts", "parts"}));
    ExplicitLayout::Local local;
    ExplicitTensor& t = local.tensor;
    t.name = RESHARD_TRY(parse_name(entry, where));
    local.ranks = RESHARD_TRY(ranks(entry, where));
    if (!(local.ranks - out_.ranks).empty())
      return fail(Code::corrupt, fmt::format("{}: a rank is not among those of the file", where));
    t.dtype = RESHARD_TRY(parse_dtype(fields));
    t.shape = RESHARD_TRY(parse_shape(fields));
    t.merged = RESHARD_TRY(parse_merged(fields, t.shape));
    t.padded = RESHARD_TRY(parse_flag(entry, "padded", where));
    t.casts = RESHARD_TRY(parse_flag(entry, "casts", where));
    t.map = static_cast<ValueMap>(
        RESHARD_TRY(fields.word("map", {name(ValueMap::identity), name(ValueMap::negated_exp),
                                        name(ValueMap::plus_one), name(ValueMap::minus_one)})));
    for (const Json& part : RESHARD_TRY(fields.list("parts", kLimits.values))) {
      auto parsed =
          part.string() ? parse_part(*part.string(), t.shape.size()) : std::optional<PlacedBox>();
      if (!parsed)
        return fail(Code::corrupt,
                    fmt::format("{}: part {} must be as \"17[0,4)x[0,8)@4,0\", is {}", where,
                                t.parts.size() + 1, part.describe()));
      t.parts.push_back(*parsed);
    }
    auto checked = check_explicit(t, *out_.tensors);
    if (!checked)
      return fail(checked.error().code == Code::unsupported ? Code::unsupported : Code::corrupt,
                  fmt::format("{}: {}", where, checked.error().message));
    out_.locals.push_back(std::move(local));
    return {};
  }

  ExplicitLayout out_;
  ModelSpec tensors_;
  std::size_t rank_words_ = 0;
};

std::string shape_text(const Dims& shape, MergedDims merged) {
  std::string text = fmt::format("\"shape\": {}", to_string(shape));
  std::string_view sign = ", \"merged\": [";
  for (int k = 0; k + 1 < shape.size(); ++k) {
    if ((merged.bits >> k & 1) == 0) continue;
    text += fmt::format("{}{}", sign, k);
    sign = ", ";
  }
  return sign == ", " ? text + "]" : text;
}

std::string local_text(const ExplicitLayout::Local& local) {
  const ExplicitTensor& t = local.tensor;
  std::string text =
      fmt::format("{{\"name\": {}, \"ranks\": \"{}\", \"dtype\": \"{}\", {}", json_quote(t.name),
                  ranks_text(local.ranks), name(t.dtype), shape_text(t.shape, t.merged));
  if (t.padded) text += ", \"padded\": true";
  if (t.casts) text += ", \"casts\": true";
  if (t.map != ValueMap::identity) text += fmt::format(", \"map\": \"{}\"", name(t.map));
  std::string_view sign = ", \"parts\": [";
  for (const PlacedBox& p : t.parts) {
    text += fmt::format("{}\"{}\"", sign, part_text(p));
    sign = ", ";
  }
  return text + (sign == ", " ? "]}" : "}");
}

}  // namespace

Result<ExplicitLayout> parse_layout_file(std::string_view text) {
  return FileParser().parse(RESHARD_TRY(parse_json(text, kLimits)));
}

Result<ExplicitLayout> read_layout_file(const std::string& path) {
  const auto text = RESHARD_TRY(read_text_file(path, kMaxLayoutFile));
  auto layout = parse_layout_file(text);
  if (!layout) return tl::unexpected(std::move(layout).error().in(path));
  return layout;
}

std::string layout_file_text(const ExplicitLayout& layout) {
  std::string text = fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"version\": {},\n  \"name\": {},\n  \"ranks\": "
      "\"{}\",\n  \"tensors\": [",
      kFormat, kVersion, json_quote(layout.name), ranks_text(layout.ranks));
  std::string_view sign = "\n";
  for (const CanonicalTensor& t : layout.tensors->tensors()) {
    text += fmt::format("{}    {{\"name\": {}, \"dtype\": \"{}\", {}}}", sign, json_quote(t.name),
                        name(t.dtype), shape_text(t.shape, t.merged));
    sign = ",\n";
  }
  text += "\n  ],\n  \"omitted\": [";
  sign = "\n";
  for (TensorId id : layout.omitted) {
    text += fmt::format("{}    {}", sign, json_quote((*layout.tensors)[id].name));
    sign = ",\n";
  }
  text += "\n  ],\n  \"local_tensors\": [";
  sign = "\n";
  for (const ExplicitLayout::Local& local : layout.locals) {
    text += fmt::format("{}    {}", sign, local_text(local));
    sign = ",\n";
  }
  return text + "\n  ]\n}\n";
}

Result<> write_layout_file(const std::string& path, const ModelLayout& layout) {
  const std::string text = layout_file_text(explicit_tensors(layout));
  if (text.size() > kMaxLayoutFile)
    return fail(Code::unsupported, fmt::format("{}: the layout takes {} bytes, at most {} can be "
                                               "read back",
                                               path, text.size(), kMaxLayoutFile));
  return files::write_text_file(path, text);
}

}  // namespace reshard
