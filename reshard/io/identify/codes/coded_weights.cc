// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/codes/coded_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace reshard::identify {
namespace {

using Method = CodeForm::Method;
using Role = CodePart::Role;

constexpr std::string_view kPacked = ".weight_packed", kQweight = ".qweight";
/// Consecutive columns of AWQ's words.
constexpr std::array<std::uint8_t, 16> kAwqPlaces = {0, 4, 1, 5, 2, 6, 3, 7};

constexpr CodeDim rows_of(Index unit) { return {true, unit}; }
constexpr CodeDim cols_of(Index unit) { return {false, unit}; }

/// Builds a weight from its codes and what lies beside them.
class Builder {
 public:
  Builder(const CodeForm& form, const ModelSpec& stored, const CanonicalTensor& t,
          std::string_view end, std::optional<Index> cols)
      : form_(form), stored_(stored), t_(t), cols_(cols) {
    module_ = t.name.substr(0, t.name.size() - end.size());
    out_.name = module_ + std::string(kWeight);
    weight().bits = form.bits;
  }

  Result<NamedWeight> awq() {
    weight().rows = t_.shape[1] * per_word();
    weight().cols = t_.shape[0];
    weight().place = kAwqPlaces;
    add_codes({cols_of(1), rows_of(per_word())});
    RESHARD_TRY(take_beside(form_.group_cols));
    return std::move(out_);
  }

  /// AutoAWQ's other version: rows of words in order, zero points and scales beside each row,
  /// padded to the reads of its kernel.
  Result<NamedWeight> awq_gemv() {
    weight().rows = t_.shape[0];
    weight().cols = t_.shape[1] * per_word();
    weight().files_only = true;
    add_codes({rows_of(1), cols_of(per_word())});
    const Index group = weight().group_cols = group_cols_of(form_.group_cols);
    if (weight().cols % group != 0) return not_whole("groups", group);
    if (group != 32 && group != 64 && group < 128)
      return fail(Code::unsupported, fmt::format("'{}' is stored as {} with {} columns, for which "
                                                 "AutoAWQ defines no padding",
                                                 t_.name, form_.text, weight().cols));
    const Index words = group >= 128 ? 1 : 128 / group;
    RESHARD_TRY(add(Role::zeros, module_ + ".qzeros", {DType::i32},
                    {rows_of(1), {false, group * per_word(), 1, words}}));
    RESHARD_TRY(add(Role::scales, module_ + ".scales", kFloats,
                    {rows_of(1), {false, group, 1, words * per_word()}}));
    return std::move(out_);
  }

  Result<NamedWeight> gptq() {
    const CodeForm::Integers its = RESHARD_TRY(gptq_integers());
    weight().bits = its.bits;
    weight().rows = t_.shape[1];
    const Index k = per_word(), words = weight().num_words();
    if (t_.shape[0] % words != 0) return not_whole("words of codes", words);
    weight().cols = t_.shape[0] / words * k;
    if (words > 1 && weight().rows % k != 0) return not_whole("words of zero points", words);
    weight().zero_offset = form_.zeros_less_1 ? 1 : 0;
    weight().shares_group = true;
    weight().files_only = words > 1;
    add_codes({words_of(false), rows_of(1)});
    RESHARD_TRY(take_beside(its.group_cols));
    RESHARD_TRY(take_order(module_ + ".g_idx"));
    return std::move(out_);
  }

  /// compressed-tensors' words. A code is the integer plus half the range, and so is a zero point.
  Result<NamedWeight> packed() {
    weight().rows = t_.shape[0];
    weight().cols = cols_.value_or(t_.shape[1] * per_word());
    add_codes({rows_of(1), cols_of(per_word())});
    RESHARD_TRY(take_scales());
    if (const std::string name = out_.name + "_zero_point"; stored_.find(name))
      RESHARD_TRY(add(Role::zeros, name, {DType::i32},
                      {rows_of(per_word()), cols_of(weight().group_cols)}));
    else
      weight().zero_offset = 1 << (form_.bits - 1);
    RESHARD_TRY(take_order(out_.name + "_g_idx"));
    weight().shares_group = true;
    if (const std::string name = out_.name + "_shape"; stored_.find(name))
      RESHARD_TRY(add(Role::shape, name, {DType::i64, DType::i32}, {}));
    return std::move(out_);
  }

  /// compressed-tensors' I8.
  Result<NamedWeight> bytes() {
    weight().rows = t_.shape[0];
    weight().cols = t_.shape[1];
    weight().bits = 8;
    weight().word_bytes = 1;
    weight().is_signed = true;
    add_codes({rows_of(1), cols_of(1)});
    RESHARD_TRY(take_scales());
    if (const std::string name = out_.name + "_zero_point"; stored_.find(name))
      RESHARD_TRY(add(Role::zeros, name, {DType::i8}, weight().part(Role::scales)->dims));
    RESHARD_TRY(take_order(out_.name + "_g_idx"));
    return std::move(out_);
  }

 private:
  CodedWeight& weight() { return out_.weight; }
  Index per_word() { return weight().per_word(); }
  void add_codes(std::vector<CodeDim> dims) {
    weight().parts.push_back({Role::codes, t_.name, t_.dtype, std::move(dims)});
  }
  Result<> add(Role role, const std::string& name, std::initializer_list<DType> dtypes,
               std::vector<CodeDim> dims) {
    CodePart part{role, name, DType::i32, std::move(dims)};
    const auto* const t =
        RESHARD_TRY(find_part(form_, stored_, t_.name, {name, dtypes, weight().shape_of(part)}));
    part.dtype = t->dtype;
    weight().parts.push_back(std::move(part));
    return {};
  }

  /// The whole words of codes of rows, or of columns.
  CodeDim words_of(bool rows) { return {rows, per_word(), weight().num_words()}; }
  /// 0 stands for all columns.
  Index group_cols_of(Index said) { return said == 0 ? std::max<Index>(1, weight().cols) : said; }

  tl::unexpected<Error> not_whole(std::string_view parts, Index size) const {
    return fail(Code::unsupported,
                fmt::format("'{}' is {} {}, which are no whole {} of {}, as {} is stored", t_.name,
                            name(t_.dtype), to_string(t_.shape), parts, size, form_.text));
  }

  /// Zero points and scales of AWQ and GPTQ.
  Result<> take_beside(Index group_cols) {
    const Index group = weight().group_cols = group_cols_of(group_cols);
    RESHARD_TRY(
        add(Role::zeros, module_ + ".qzeros", {DType::i32}, {cols_of(group), words_of(true)}));
    return add(Role::scales, module_ + ".scales", kFloats, {cols_of(group), rows_of(1)});
  }

  /// The bits and groups that a module of GPTQ has: of those that the config says, the ones that
  /// its parts fit. Errors: none fits, or two whose values differ.
  Result<CodeForm::Integers> gptq_integers() const {
    const CodeForm::Integers usual{form_.bits, form_.group_cols};
    if (form_.others.empty()) return usual;
    std::optional<CodeForm::Integers> found;
    std::vector<CodeForm::Integers> all = form_.others;
    all.insert(all.begin(), usual);
    for (CodeForm::Integers its : all) {
      const Index cols = t_.shape[0] * 32 / its.bits, rows = t_.shape[1];
      if (its.group_cols == 0 || its.group_cols > cols) its.group_cols = std::max<Index>(1, cols);
      const Dims zeros{groups_of(cols, its.group_cols), (rows * its.bits + 31) / 32};
      if (shape_of(".qzeros") != zeros || shape_of(".scales") != Dims{zeros[0], rows} ||
          shape_of(".g_idx").value_or(Dims{cols}) != Dims{cols})
        continue;
      if (found && *found != its)
        return fail(Code::unsupported,
                    fmt::format("'{}' may have groups of {} or {} columns: its parts fit both, as "
                                "{} is stored",
                                t_.name, found->group_cols, its.group_cols, form_.text));
      found = its;
    }
    if (found) return *found;
    const auto said = [&](const char* part) {
      const auto shape = shape_of(part);
      return shape ? to_string(*shape) : "missing";
    };
    return fail(Code::unsupported,
                fmt::format("'{}' is {} {}, its qzeros are {} and its scales {}: no form of {}",
                            t_.name, name(t_.dtype), to_string(t_.shape), said(".qzeros"),
                            said(".scales"), form_.text));
  }
  /// The shape of a part of the module; none if the module has no such part.
  std::optional<Dims> shape_of(std::string_view part) const {
    const auto id = stored_.find(module_ + std::string(part));
    return id ? std::optional(stored_[*id].shape) : std::nullopt;
  }

  /// The group of each column, if the files say it.
  Result<> take_order(const std::string& name) {
    if (!stored_.find(name)) return {};
    weight().in_order.reset();
    return add(Role::order, name, {DType::i32}, {cols_of(1)});
  }

  /// compressed-tensors' scales: of the tensor, of rows, or of groups of columns.
  Result<> take_scales() {
    const std::string name = out_.name + "_scale";
    const auto id = stored_.find(name);
    const Dims there = id ? stored_[*id].shape : Dims{};
    const bool one = id && volume(there) == 1;
    const Index groups = there.size() == 2 && there[1] > 0 ? there[1] : 1;
    if (weight().cols % groups != 0)
      return fail(Code::unsupported,
                  fmt::format("'{}' has {} columns in {} groups, which are not of one size",
                              t_.name, weight().cols, groups));
    weight().group_cols = std::max<Index>(1, weight().cols / groups);
    const Index rows = std::max<Index>(1, one ? weight().rows : 1);
    std::vector<CodeDim> dims = {rows_of(rows), cols_of(weight().group_cols)};
    if (one) dims.resize(static_cast<std::size_t>(std::min(2, there.size())));
    return add(Role::scales, name, kFloats, std::move(dims));
  }

  const CodeForm& form_;
  const ModelSpec& stored_;
  const CanonicalTensor& t_;
  std::optional<Index> cols_;
  std::string module_;
  NamedWeight out_;
};

}  // namespace

Result<const CanonicalTensor*> find_part(const CodeForm& form, const ModelSpec& stored,
                                         const std::string& codes, const WantedPart& want) {
  const auto id = stored.find(want.name);
  if (!id)
    return fail(Code::unsupported,
                fmt::format("'{}' is stored as {} without '{}'", codes, form.text, want.name));
  const CanonicalTensor& t = stored[*id];
  if (std::ranges::find(want.dtypes, t.dtype) != want.dtypes.end() && t.shape == want.shape)
    return &t;
  std::string dtypes;
  for (const DType d : want.dtypes)
    dtypes += fmt::format("{}{}", dtypes.empty() ? "" : " or ", name(d));
  return fail(
      Code::unsupported,
      fmt::format("'{}' is {} {}; of '{}', stored as {}, it must be {} {}", t.name, name(t.dtype),
                  to_string(t.shape), codes, form.text, dtypes, to_string(want.shape)));
}

std::optional<std::string> packed_weight(const CodeForm& form, const CanonicalTensor& t) {
  const bool is = form.method == Method::compressed_tensors && t.shape.size() == 2 &&
                  t.dtype == DType::i32 && t.name.ends_with(kPacked);
  return is ? std::optional(t.name.substr(0, t.name.size() - kPacked.size()) + std::string(kWeight))
            : std::nullopt;
}

Result<std::optional<NamedWeight>> coded_weight(const CodeForm& form, const ModelSpec& stored,
                                                const CanonicalTensor& t,
                                                std::optional<Index> cols) {
  // No file has so many codes: products with the codes of a word stay exact.
  constexpr Index kMaxWords = Index{1} << 48;
  const auto is = [&](std::string_view end, DType dtype) {
    return t.shape.size() == 2 && t.shape[0] <= kMaxWords && t.shape[1] <= kMaxWords &&
           t.dtype == dtype && t.name.ends_with(end);
  };
  const auto builder = [&](std::string_view end) { return Builder(form, stored, t, end, cols); };
  switch (form.method) {
    case Method::awq:
      if (is(kQweight, DType::i32)) return RESHARD_TRY(builder(kQweight).awq());
      break;
    case Method::awq_gemv:
      if (is(kQweight, DType::i32)) return RESHARD_TRY(builder(kQweight).awq_gemv());
      break;
    case Method::gptq:
      if (is(kQweight, DType::i32)) return RESHARD_TRY(builder(kQweight).gptq());
      break;
    case Method::compressed_tensors:
      if (packed_weight(form, t)) return RESHARD_TRY(builder(kPacked).packed());
      if (is(kWeight, DType::i8)) return RESHARD_TRY(builder(kWeight).bytes());
      break;
    case Method::bitsandbytes:
    case Method::hqq:
    case Method::torchao: break;
  }
  return std::optional<NamedWeight>();
}

}  // namespace reshard::identify
