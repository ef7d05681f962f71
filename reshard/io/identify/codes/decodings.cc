// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/codes/decodings.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "reshard/io/hf/config_fields.h"
#include "reshard/io/identify/codes/code_files.h"
#include "reshard/io/identify/codes/torchao.h"
#include "reshard/io/identify/tensor_lists.h"

namespace reshard::identify {
namespace {

using Method = CodeForm::Method;

constexpr std::string_view kWeight = ".weight", kPacked = ".weight_packed", kQweight = ".qweight";
/// Consecutive columns of AWQ's words.
constexpr std::array<std::uint8_t, 16> kAwqPlaces = {0, 4, 1, 5, 2, 6, 3, 7};
/// The codes of bitsandbytes' 4-bit forms, as its kernels have them (Dettmers et al. 2023, QLoRA).
constexpr std::array<float, 16> kNf4 = {-1,
                                        -0x1.647362p-1F,
                                        -0x1.0cd66p-1F,
                                        -0x1.94654p-2F,
                                        -0x1.23449ap-2F,
                                        -0x1.7a6a7ep-3F,
                                        -0x1.74f0e2p-4F,
                                        0,
                                        0x1.45f5fep-4F,
                                        0x1.4995c6p-3F,
                                        0x1.f809bap-3F,
                                        0x1.5a0674p-2F,
                                        0x1.c34970p-2F,
                                        0x1.200f56p-1F,
                                        0x1.722766p-1F,
                                        1};
constexpr std::array<float, 16> kFp4 = {
    0,     1 / 192.0F,  2 / 3.0F,  1,  1 / 3.0F,  0.5F,  1 / 6.0F,  0.25F,
    -0.0F, -1 / 192.0F, -2 / 3.0F, -1, -1 / 3.0F, -0.5F, -1 / 6.0F, -0.25F};
/// 1 / 127, as bitsandbytes rounds it.
constexpr float kInt8Step = 7.874015748698502e-3F;

class Finder : CodeFiles {
 public:
  using CodeFiles::CodeFiles;

  /// The tensor whose codes `t` is; none if it is something else.
  Result<std::optional<FoundCodes>> find(const CheckpointTensor& t) const {
    const bool matrix = t.shape.size() == 2;
    const auto is = [&](std::string_view end, DType dtype) {
      return matrix && t.dtype == dtype && t.name.ends_with(end);
    };
    switch (form().method) {
      case Method::awq:
        if (is(kQweight, DType::i32)) return awq(t);
        break;
      case Method::gptq:
        if (is(kQweight, DType::i32)) return gptq(t);
        break;
      case Method::compressed_tensors:
        if (is(kPacked, DType::i32)) return packed(t);
        if (is(kWeight, DType::i8)) return bytes(t);
        break;
      case Method::bitsandbytes:
        if (is(kWeight, DType::u8)) return table(t);
        if (is(kWeight, DType::i8)) return rows(t);
        break;
      case Method::torchao: return torchao(*this, t);
    }
    return std::optional<FoundCodes>();
  }

 private:
  /// The module whose codes are named "MODULE" + `end`.
  static std::string module_of(const CheckpointTensor& t, std::string_view end) {
    return t.name.substr(0, t.name.size() - end.size());
  }
  /// The decoded weight of that module.
  static FoundCodes named(const CheckpointTensor& t, std::string_view end, Dims shape,
                          DType dtype) {
    return {module_of(t, end) + std::string(kWeight), std::move(shape), dtype, {}};
  }
  /// Scales of AWQ and GPTQ [groups, rows], and zero points [groups, rows / 8].
  Result<> take_beside(FoundCodes& found, CodedMatrix& m, const CheckpointTensor& q,
                       const std::string& module) const {
    const Index zero_words = groups_of(m.rows, m.codes.per_word());
    m.groups = groups_of(m.cols, form().group_cols);
    m.group_cols = form().group_cols == 0 ? m.cols : form().group_cols;
    const auto* zeros =
        RESHARD_TRY(part(found, q, {module + ".qzeros", {DType::i32}, Dims{m.groups, zero_words}}));
    const auto* scales =
        RESHARD_TRY(part(found, q, {module + ".scales", kFloats, Dims{m.groups, m.rows}}));
    m.zeros = m.codes;
    m.zeros->words = data(*zeros);
    m.zeros->along_rows = true;
    m.zeros->row_stride = 1;
    m.zeros->col_stride = zero_words;
    m.scales = data(*scales);
    m.scale_dtype = scales->dtype;
    m.scale_row = 1;
    m.scale_group = m.rows;
    return {};
  }

  Result<std::optional<FoundCodes>> awq(const CheckpointTensor& t) const {
    CodedMatrix m{.rows = t.shape[1] * 8, .cols = t.shape[0], .codes = {}};
    m.codes = {.words = data(t), .along_rows = true, .row_stride = 1, .col_stride = t.shape[1]};
    m.codes.place = kAwqPlaces;
    FoundCodes found = named(t, kQweight, {m.rows, m.cols}, values());
    const std::string module = module_of(t, kQweight);
    RESHARD_TRY(take_beside(found, m, t, module));
    found.codes = m;
    return std::optional(std::move(found));
  }

  Result<std::optional<FoundCodes>> gptq(const CheckpointTensor& t) const {
    CodedMatrix m{.rows = t.shape[1], .cols = t.shape[0] * (32 / form().bits), .codes = {}};
    m.codes = {.words = data(t), .bits = form().bits, .row_stride = 1, .col_stride = t.shape[1]};
    m.zero_offset = form().zeros_less_1 ? 1 : 0;
    FoundCodes found = named(t, kQweight, {m.rows, m.cols}, values());
    const std::string module = module_of(t, kQweight);
    RESHARD_TRY(take_beside(found, m, t, module));
    RESHARD_TRY(take_order(found, m, t, module + ".g_idx"));
    found.codes = m;
    return std::optional(std::move(found));
  }

  /// The group of each column, if the files say it.
  Result<> take_order(FoundCodes& found, CodedMatrix& m, const CheckpointTensor& codes,
                      const std::string& name) const {
    if (stored(name) == nullptr) return {};
    m.group_of_col = data(*RESHARD_TRY(part(found, codes, {name, {DType::i32}, Dims{m.cols}})));
    return {};
  }

  /// compressed-tensors' words. A code is the integer plus half the range, and so is a zero point.
  Result<std::optional<FoundCodes>> packed(const CheckpointTensor& t) const {
    const Index k = 32 / form().bits;
    CodedMatrix m{.rows = t.shape[0], .cols = t.shape[1] * k, .codes = {}};
    m.codes = {.words = data(t), .bits = form().bits, .row_stride = t.shape[1], .col_stride = 1};
    FoundCodes found = named(t, kPacked, {}, values());
    RESHARD_TRY(take_shape(found, m, t));
    RESHARD_TRY(take_scales(found, m, t));
    if (const std::string name = found.tensor + "_zero_point"; stored(name) != nullptr) {
      const auto* zeros =
          RESHARD_TRY(part(found, t, {name, {DType::i32}, Dims{groups_of(m.rows, k), m.groups}}));
      m.zeros = m.codes;
      *m.zeros = {.words = data(*zeros),
                  .bits = form().bits,
                  .along_rows = true,
                  .row_stride = m.groups,
                  .col_stride = 1};
    } else {
      m.zero_offset = 1 << (form().bits - 1);
    }
    RESHARD_TRY(take_order(found, m, t, found.tensor + "_g_idx"));
    found.shape = {m.rows, m.cols};
    found.codes = m;
    return std::optional(std::move(found));
  }

  /// The shape that is stored beside words whose last ones need not be full.
  Result<> take_shape(FoundCodes& found, CodedMatrix& m, const CheckpointTensor& t) const {
    const CheckpointTensor* const shape = stored(found.tensor + "_shape");
    if (shape == nullptr) return {};
    const auto sizes = stored_sizes(files(), *shape);
    if (!sizes)
      return fail(Code::corrupt, fmt::format("'{}' is {} {}; it must be two integers", shape->name,
                                             name(shape->dtype), to_string(shape->shape)));
    const auto& said = *sizes;
    const Index k = m.codes.per_word();
    if (said[0] != m.rows || said[1] < 0 || said[1] > m.cols || groups_of(said[1], k) != t.shape[1])
      return fail(Code::corrupt,
                  fmt::format("'{}' says [{}, {}], but '{}' has words for {}", shape->name, said[0],
                              said[1], t.name, to_string(Dims{m.rows, m.cols})));
    m.cols = said[1];
    found.parts.push_back(shape->name);
    return {};
  }

  /// compressed-tensors' scales: of the tensor, of rows, or of groups of columns.
  Result<> take_scales(FoundCodes& found, CodedMatrix& m, const CheckpointTensor& t) const {
    const std::string name = found.tensor + "_scale";
    const CheckpointTensor* const there = stored(name);
    const bool one = there != nullptr && volume(there->shape) == 1;
    const bool grouped = there != nullptr && there->shape.size() == 2 && there->shape[1] > 0;
    m.groups = grouped ? there->shape[1] : 1;
    const Dims shape = one ? there->shape : Dims{m.rows, m.groups};
    const auto* scales = RESHARD_TRY(part(found, t, {name, kFloats, shape}));
    if (m.cols % m.groups != 0)
      return fail(Code::unsupported,
                  fmt::format("'{}' has {} columns in {} groups, which are not of one size", t.name,
                              m.cols, m.groups));
    m.group_cols = m.cols / m.groups;
    m.scales = data(*scales);
    m.scale_dtype = scales->dtype;
    m.scale_row = one ? 0 : m.groups;
    m.scale_group = 1;
    return {};
  }

  /// compressed-tensors' I8.
  Result<std::optional<FoundCodes>> bytes(const CheckpointTensor& t) const {
    CodedMatrix m = signed_bytes(t);
    FoundCodes found = named(t, kWeight, {m.rows, m.cols}, values());
    RESHARD_TRY(take_scales(found, m, t));
    if (const std::string name = found.tensor + "_zero_point"; stored(name) != nullptr) {
      const Dims& of_scales = stored(found.tensor + "_scale")->shape;
      m.zeros = m.codes;
      m.zeros->words = data(*RESHARD_TRY(part(found, t, {name, {DType::i8}, of_scales})));
      m.zeros->row_stride = m.scale_row;
    }
    RESHARD_TRY(take_order(found, m, t, found.tensor + "_g_idx"));
    found.codes = m;
    return std::optional(std::move(found));
  }

  /// bitsandbytes' LLM.int8(): a scale of each row, which is its largest magnitude.
  Result<std::optional<FoundCodes>> rows(const CheckpointTensor& t) const {
    CodedMatrix m = signed_bytes(t);
    FoundCodes found = named(t, kWeight, {m.rows, m.cols}, values());
    const std::string module = module_of(t, kWeight);
    m.scales = data(*RESHARD_TRY(part(found, t, {module + ".SCB", {DType::f32}, Dims{m.rows}})));
    m.scale_dtype = DType::f32;
    m.scale_row = 1;
    m.group_cols = m.cols;
    m.factor = kInt8Step;
    if (const auto* order = stored(module + ".weight_format")) {
      if (order->dtype != DType::u8 || order->bytes != 1 || *data(*order) != std::byte{0})
        return fail(
            Code::unsupported,
            fmt::format("'{}' says that '{}' is not in the order of rows", order->name, t.name));
      found.parts.push_back(order->name);
    }
    found.codes = m;
    return std::optional(std::move(found));
  }

  /// bitsandbytes' quant_state of 4-bit weights: a tensor of JSON text.
  struct State {
    Dims shape;
    DType dtype = DType::bf16;
    Index block = 64, nested_block = 256;
    double offset = 0;
  };
  Result<State> state_of(const CheckpointTensor& t) const {
    constexpr Index kMax = 1 << 20;
    const auto bytes = files().data(t);
    if (t.bytes > kMax)
      return fail(Code::corrupt, fmt::format("'{}' has {} bytes", t.name, t.bytes));
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    const auto fields = RESHARD_TRY(hf::ConfigFields::parse(text, "'" + t.name + "'"));
    State state;
    for (const Index size : RESHARD_TRY(fields.indices("shape"))) {
      if (state.shape.size() == kMaxDims) return fields.wrong("shape has too many dimensions");
      state.shape.push_back(size);
    }
    const auto dtype = RESHARD_TRY(fields.text("dtype")).value_or("none");
    const auto known = value_dtype(dtype);
    if (!known) return fields.unsupported("dtype " + as_word(dtype));
    state.dtype = *known;
    state.block = RESHARD_TRY(fields.size("blocksize", kMax));
    state.nested_block =
        RESHARD_TRY(fields.optional_size("nested_blocksize", kMax)).value_or(state.nested_block);
    state.offset = RESHARD_TRY(fields.number("nested_offset")).value_or(0);
    return state;
  }

  Result<std::optional<FoundCodes>> table(const CheckpointTensor& t) const {
    const CheckpointTensor* const nf4 = stored(t.name + ".quant_state.bitsandbytes__nf4");
    const CheckpointTensor* const fp4 = stored(t.name + ".quant_state.bitsandbytes__fp4");
    const CheckpointTensor* const said = nf4 != nullptr ? nf4 : fp4;
    if (said == nullptr || said->dtype != DType::u8)
      return fail(Code::unsupported,
                  fmt::format("'{}' is stored as {} without its quant_state", t.name, form().text));
    const State state = RESHARD_TRY(state_of(*said));
    const auto bits = stored_bytes(DType::f32, state.shape);
    const Index count = bits ? *bits / 4 : -1;
    if (count < 0 || (count + 1) / 2 != t.bytes)
      return fail(Code::corrupt, fmt::format("'{}' says {}, but '{}' has {} bytes", said->name,
                                             to_string(state.shape), t.name, t.bytes));
    FoundCodes found{t.name, state.shape, state.dtype, {}, {said->name}};
    TableMatrix m{.count = count, .codes = data(t), .block = state.block};
    const auto* map = RESHARD_TRY(part(found, t, {t.name + ".quant_map", {DType::f32}, Dims{16}}));
    m.table = nf4 != nullptr ? kNf4 : kFp4;
    for (std::size_t i = 0; i < m.table.size(); ++i) {
      float entry = 0;
      std::memcpy(&entry, data(*map) + i * sizeof entry, sizeof entry);
      // Kernels have tables of their own: -0 where the map has 0.
      if (!(entry == m.table[i]))
        return fail(Code::unsupported,
                    fmt::format("entry {} of '{}' is {}, not {} as bitsandbytes' "
                                "kernels have it",
                                i, map->name, entry, m.table[i]));
    }
    const Index blocks = groups_of(count, m.block);
    const auto* scales =
        RESHARD_TRY(part(found, t, {t.name + ".absmax", {DType::f32, DType::u8}, Dims{blocks}}));
    m.scales = data(*scales);
    if (scales->dtype == DType::u8) {
      const auto* coded =
          RESHARD_TRY(part(found, t, {t.name + ".nested_quant_map", {DType::f32}, Dims{256}}));
      const Dims outer{groups_of(blocks, state.nested_block)};
      const auto* nested =
          RESHARD_TRY(part(found, t, {t.name + ".nested_absmax", {DType::f32}, outer}));
      m.coded = {data(*coded), data(*nested), state.nested_block, static_cast<float>(state.offset)};
    }
    found.codes = m;
    return std::optional(std::move(found));
  }
};

}  // namespace

Result<DecodedTensors> decoded_tensors(const ModelSpec& stored, const CodeForm& form,
                                       const Checkpoint& checkpoint, DType values) {
  const Finder finder(form, checkpoint, values);
  std::map<std::string, FoundCodes> found;  // by the name of the codes
  std::set<std::string> parts;
  for (const CheckpointTensor& t : checkpoint.tensors()) {
    if (!stored.find(t.name)) continue;
    auto one = RESHARD_TRY(finder.find(t));
    if (!one) continue;
    parts.insert(one->parts.begin(), one->parts.end());
    found.emplace(t.name, *std::move(one));
  }
  DecodedTensors out;
  for (const CanonicalTensor& t : stored.tensors()) {
    if (parts.contains(t.name)) continue;
    const auto codes = found.find(t.name);
    if (codes == found.end()) {
      RESHARD_TRY(out.tensors.add(t.name, t.shape, t.dtype, t.merged));
      continue;
    }
    const FoundCodes& f = codes->second;
    RESHARD_TRY(out.tensors.add(f.tensor, f.shape, f.dtype));
    out.codes.emplace(f.tensor, f.codes);
  }
  return out;
}

}  // namespace reshard::identify
