// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/codes/torchao.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "reshard/io/checkpoint/safetensors.h"
#include "reshard/io/hf/config_fields.h"
#include "reshard/transform/swizzled_scales.h"

namespace reshard::identify {
namespace {

using hf::ConfigFields;

constexpr std::string_view kCodes = "_qdata";

/// A parameter that torchao stores in parts: its own name, and the prefix of the names of its
/// parts.
struct Parameter {
  std::string name, parts;
};
/// None if the name is not that of codes.
std::optional<Parameter> parameter_of(std::string_view codes) {
  const auto dot = codes.rfind('.');
  const std::size_t at = dot == codes.npos ? 0 : dot + 1;
  if (!codes.ends_with(kCodes) || codes.size() < at + 2 + kCodes.size() || codes[at] != '_')
    return std::nullopt;
  const std::string_view parts = codes.substr(0, codes.size() - kCodes.size());
  return Parameter{std::string(codes.substr(0, at)) + std::string(parts.substr(at + 1)),
                   std::string(parts) + "_"};
}

class Reader {
 public:
  Reader(const CodeFiles& files, const CheckpointTensor& codes, Parameter parameter,
         ConfigFields description, ConfigFields attributes)
      : files_(files),
        codes_(codes),
        parameter_(std::move(parameter)),
        description_(std::move(description)),
        attributes_(std::move(attributes)),
        found_{parameter_.name, {}, files.values(), {}} {}

  Result<FoundCodes> read(std::string_view subclass) {
    if (codes_.shape.size() != 2)
      return unread(fmt::format("{}, no matrix,", to_string(codes_.shape)));
    if (subclass == "Int8Tensor" || subclass == "IntxUnpackedToInt8Tensor")
      RESHARD_TRY(integers());
    else if (subclass == "Int4Tensor")
      RESHARD_TRY(int4());
    else if (subclass == "Float8Tensor")
      RESHARD_TRY(float8());
    else if (subclass == "MXTensor")
      RESHARD_TRY(mx());
    else if (subclass == "NVFP4Tensor")
      RESHARD_TRY(nvfp4());
    else
      return unread("");
    RESHARD_TRY(check_parts());
    found_.shape = {m_.rows, m_.cols};
    found_.codes = m_;
    return std::move(found_);
  }

 private:
  /// The error for a tensor, or `what` of it, that is not read.
  tl::unexpected<Error> unread(const std::string& what) const {
    const std::string subclass = description_.text("_type")->value_or("none");
    return fail(Code::unsupported,
                fmt::format("'{}' is stored as torchao's {}{}{} which is not read", codes_.name,
                            subclass, what.empty() ? "," : " of ", what));
  }

  /// Refuses parts that the description lists and that the subclass is not known to have, or that
  /// are missing.
  Result<> check_parts() const {
    const auto listed = RESHARD_TRY(description_.texts("_tensor_data_names"));
    std::set<std::string> known = {codes_.name};
    known.insert(found_.parts.begin(), found_.parts.end());
    for (const std::string& part : listed.value_or(std::vector<std::string>()))
      if (const std::string name = parameter_.parts + part; !known.contains(name)) {
        if (files_.stored(name) != nullptr) return unread(fmt::format("'{}',", name));
        return fail(Code::unsupported, fmt::format("'{}' is stored as {} without '{}'", codes_.name,
                                                   files_.form().text, name));
      }
    return {};
  }

  /// An attribute that is a dtype; none if it is absent.
  Result<std::optional<std::string>> dtype(std::string_view key) const {
    const auto held = RESHARD_TRY(attributes_.object(key));
    return held ? RESHARD_TRY(held->text("_data")) : std::nullopt;
  }
  /// Takes the dtype of the values.
  Result<> take_values(std::string_view key) {
    const auto said = RESHARD_TRY(dtype(key)).value_or("none");
    const auto known = value_dtype(said);
    if (!known) return unread(fmt::format("{} {},", key, as_word(said)));
    found_.dtype = *known;
    return {};
  }

  /// Takes codes of one byte each or, with `bits` 4, two in a byte with the first in the low half.
  void take_codes(int bits, bool is_signed) {
    m_.rows = codes_.shape[0];
    m_.cols = codes_.shape[1] * (8 / bits);
    m_.codes = {.words = files_.data(codes_),
                .bits = bits,
                .word_bytes = 1,
                .is_signed = is_signed,
                .row_stride = codes_.shape[1],
                .col_stride = 1};
  }

  Result<> expect_codes(std::initializer_list<DType> dtypes) const {
    if (std::ranges::find(dtypes, codes_.dtype) == dtypes.end())
      return unread(std::string(name(codes_.dtype)) + ",");
    return {};
  }

  /// The part, if it is there.
  Result<const CheckpointTensor*> optional_part(const std::string& name,
                                                std::initializer_list<DType> dtypes,
                                                const Dims& shape) {
    const std::string full = parameter_.parts + name;
    if (files_.stored(full) == nullptr) return nullptr;
    return files_.part(found_, codes_, {full, dtypes, shape});
  }
  Result<const CheckpointTensor*> part(const std::string& name, std::initializer_list<DType> dtypes,
                                       const Dims& shape) {
    return files_.part(found_, codes_, {parameter_.parts + name, dtypes, shape});
  }

  /// Takes scales [row groups, column groups]. Their shape gives the size of the groups.
  Result<> take_scales(std::initializer_list<DType> dtypes) {
    const CheckpointTensor* const there = files_.stored(parameter_.parts + "scale");
    Dims shape{m_.rows, 1};
    if (there != nullptr && volume(there->shape) == 1) {
      shape = there->shape;
    } else if (there != nullptr && there->shape.size() == 2) {
      const Index rows = there->shape[0], cols = there->shape[1];
      const bool divides = rows > 0 && cols > 0 && m_.rows % rows == 0 && m_.cols % cols == 0;
      if (divides) shape = there->shape;
    }
    const auto* scales = RESHARD_TRY(part("scale", dtypes, shape));
    const bool one = volume(shape) == 1;
    m_.groups = one ? 1 : shape[1];
    m_.group_rows = one ? 1 : m_.rows / shape[0];
    m_.group_cols = std::max<Index>(1, m_.cols / m_.groups);
    m_.scales = files_.data(*scales);
    m_.scale_dtype = scales->dtype;
    m_.scale_row = one ? 0 : m_.groups;
    m_.scale_group = 1;
    scale_shape_ = shape;
    return {};
  }

  Result<> integers() {
    RESHARD_TRY(expect_codes({DType::i8}));
    RESHARD_TRY(take_values("dtype"));
    take_codes(8, true);
    RESHARD_TRY(take_scales(kFloats));
    const auto* zeros = RESHARD_TRY(optional_part("zero_point", {DType::i8}, scale_shape_));
    if (zeros == nullptr) return {};
    m_.zeros = m_.codes;
    m_.zeros->words = files_.data(*zeros);
    m_.zeros->row_stride = m_.scale_row;
    return {};
  }

  /// Numbers from -8 to 7; a zero point is what 0 stands for.
  Result<> int4() {
    RESHARD_TRY(expect_codes({DType::i8, DType::u8}));
    take_codes(4, true);
    const auto block = RESHARD_TRY(attributes_.indices("block_size"));
    if (block.size() != 2 || block[0] != 1 || block[1] < 1 || m_.cols % block[1] != 0)
      return unread("blocks that are not groups of columns,");
    m_.group_cols = block[1];
    m_.groups = m_.cols / block[1];
    const Dims shape{m_.groups, m_.rows};
    const auto* scales = RESHARD_TRY(part("scale", kFloats, shape));
    m_.scales = files_.data(*scales);
    m_.scale_dtype = found_.dtype = scales->dtype;
    m_.scale_row = 1;
    m_.scale_group = m_.rows;
    m_.offsets = files_.data(*RESHARD_TRY(part("zero_point", {scales->dtype}, shape)));
    return {};
  }

  Result<> float8() {
    RESHARD_TRY(expect_codes({DType::f8_e4m3, DType::f8_e5m2}));
    RESHARD_TRY(take_values("dtype"));
    take_codes(8, false);
    m_.numbers = &code_values(codes_.dtype);
    return take_scales({DType::f32, DType::bf16});
  }

  /// Takes one scale for each block of columns, swizzled or in rows.
  Result<> take_block_scales(DType dtype) {
    const Index block = RESHARD_TRY(attributes_.size("block_size"));
    if (m_.cols % block != 0) return unread(fmt::format("{} columns,", m_.cols));
    m_.groups = m_.cols / block;
    m_.group_cols = block;
    m_.swizzled = RESHARD_TRY(attributes_.boolean("is_swizzled_scales", false));
    const Index rows = m_.swizzled ? scale_tile_rows(m_.rows) : m_.rows;
    const Index cols = m_.swizzled ? scale_tile_cols(m_.groups) : m_.groups;
    // torchao's shapes of swizzled scales differ; what counts is that all tiles are there.
    const CheckpointTensor* const there = files_.stored(parameter_.parts + "scale");
    const bool whole = there != nullptr && m_.swizzled && volume(there->shape) == rows * cols;
    const auto* scales =
        RESHARD_TRY(part("scale", {dtype}, whole ? there->shape : Dims{rows, cols}));
    m_.scales = files_.data(*scales);
    m_.scale_dtype = dtype;
    m_.scale_row = m_.groups;
    m_.scale_group = 1;
    return {};
  }

  Result<> mx() {
    RESHARD_TRY(take_values("orig_dtype"));
    const auto element = RESHARD_TRY(dtype("elem_dtype")).value_or("none");
    if (element == "float4_e2m1fn_x2")
      RESHARD_TRY(expect_codes({DType::u8, DType::i8}));
    else if (element == "float8_e4m3fn")
      RESHARD_TRY(expect_codes({DType::f8_e4m3}));
    else if (element == "float8_e5m2")
      RESHARD_TRY(expect_codes({DType::f8_e5m2}));
    else
      return unread(fmt::format("elem_dtype {},", as_word(element)));
    const bool bytes = element != "float4_e2m1fn_x2";
    take_codes(bytes ? 8 : 4, false);
    m_.numbers = &code_values(bytes ? codes_.dtype : DType::f4);
    return take_block_scales(DType::f8_e8m0);
  }

  Result<> nvfp4() {
    RESHARD_TRY(take_values("orig_dtype"));
    RESHARD_TRY(expect_codes({DType::u8, DType::i8}));
    take_codes(4, false);
    m_.numbers = &code_values(DType::f4);
    RESHARD_TRY(take_block_scales(DType::f8_e4m3));
    const CheckpointTensor* const there = files_.stored(parameter_.parts + "per_tensor_scale");
    if (there == nullptr) return {};
    const bool one = volume(there->shape) == 1;
    const auto* factor =
        RESHARD_TRY(part("per_tensor_scale", {DType::f32}, one ? there->shape : Dims{}));
    std::memcpy(&m_.scale_factor, files_.data(*factor), sizeof m_.scale_factor);
    return {};
  }

  const CodeFiles& files_;
  const CheckpointTensor& codes_;
  Parameter parameter_;
  ConfigFields description_, attributes_;
  FoundCodes found_;
  CodedMatrix m_;
  Dims scale_shape_;
};

}  // namespace

Result<std::optional<FoundCodes>> torchao(const CodeFiles& files, const CheckpointTensor& t) {
  auto parameter = parameter_of(t.name);
  if (!parameter) return std::optional<FoundCodes>();
  const StringMap& metadata = files.files().files()[t.file].metadata();
  const auto text = metadata.find(parameter->name);
  if (text == metadata.end())
    return fail(
        Code::unsupported,
        fmt::format("'{}' is stored as {}, but the metadata of {} does not describe '{}'", t.name,
                    files.form().text, files.files().files()[t.file].path(), parameter->name));
  const std::string source = "the metadata of '" + parameter->name + "'";
  auto description = RESHARD_TRY(ConfigFields::parse(text->second, source));
  const auto subclass = RESHARD_TRY(description.text("_type")).value_or("none");
  auto attributes = RESHARD_TRY(description.object("_data"));
  if (!attributes) return description.wrong("_data must be an object");
  Reader reader(files, t, *std::move(parameter), std::move(description), *std::move(attributes));
  return RESHARD_TRY(reader.read(subclass));
}

}  // namespace reshard::identify
