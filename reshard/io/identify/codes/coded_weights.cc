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
    RESHARD_TRY(take_beside());
    return std::move(out_);
  }

  Result<NamedWeight> gptq() {
    weight().rows = t_.shape[1];
    weight().cols = t_.shape[0] * per_word();
    weight().zero_offset = form_.zeros_less_1 ? 1 : 0;
    weight().shares_group = true;
    add_codes({cols_of(per_word()), rows_of(1)});
    RESHARD_TRY(take_beside());
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

  /// Zero points and scales of AWQ and GPTQ.
  Result<> take_beside() {
    weight().group_cols =
        form_.group_cols == 0 ? std::max<Index>(1, weight().cols) : form_.group_cols;
    const Index group = weight().group_cols;
    RESHARD_TRY(
        add(Role::zeros, module_ + ".qzeros", {DType::i32}, {cols_of(group), rows_of(per_word())}));
    return add(Role::scales, module_ + ".scales", kFloats, {cols_of(group), rows_of(1)});
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
  const auto is = [&](std::string_view end, DType dtype) {
    return t.shape.size() == 2 && t.dtype == dtype && t.name.ends_with(end);
  };
  const auto builder = [&](std::string_view end) { return Builder(form, stored, t, end, cols); };
  switch (form.method) {
    case Method::awq:
      if (is(kQweight, DType::i32)) return RESHARD_TRY(builder(kQweight).awq());
      break;
    case Method::gptq:
      if (is(kQweight, DType::i32)) return RESHARD_TRY(builder(kQweight).gptq());
      break;
    case Method::compressed_tensors:
      if (packed_weight(form, t)) return RESHARD_TRY(builder(kPacked).packed());
      if (is(kWeight, DType::i8)) return RESHARD_TRY(builder(kWeight).bytes());
      break;
    case Method::bitsandbytes:
    case Method::torchao: break;
  }
  return std::optional<NamedWeight>();
}

}  // namespace reshard::identify
