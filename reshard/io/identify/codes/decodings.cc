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
#include "reshard/io/identify/codes/hqq.h"
#include "reshard/io/identify/codes/torchao.h"
#include "reshard/io/identify/tensor_lists.h"

namespace reshard::identify {
namespace {

using Method = CodeForm::Method;
using Role = CodePart::Role;

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

/// The strides of a part's elements along rows and columns, in elements; 0 where one is for all.
struct PartStrides {
  Index rows = 0, cols = 0;
};

PartStrides strides_of(const CodedWeight& weight, const CodePart& part) {
  const Dims shape = weight.shape_of(part);
  PartStrides strides;
  Index stride = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    const CodeDim& dim = part.dims[static_cast<std::size_t>(i)];
    (dim.rows ? strides.rows : strides.cols) = shape[i] > 1 ? stride : 0;
    stride *= shape[i];
  }
  return strides;
}

PackedIntegers integers_of(const CodedWeight& weight, const CodePart& part,
                           const std::byte* words) {
  const PartStrides strides = strides_of(weight, part);
  PackedIntegers out{.words = words,
                     .bits = weight.bits,
                     .word_bytes = weight.word_bytes,
                     .is_signed = weight.is_signed,
                     .row_stride = strides.rows,
                     .col_stride = strides.cols,
                     .place = weight.place};
  // A word of one code runs along neither.
  out.along_rows = weight.per_word() > 1 && std::ranges::any_of(part.dims, [&](const CodeDim& dim) {
                     return dim.rows && dim.unit == weight.per_word();
                   });
  return out;
}

/// The matrix of a weight. `data`: the bytes of a part.
template <class Data>
CodedMatrix coded_matrix(const CodedWeight& weight, const Data& data) {
  CodedMatrix m{.rows = weight.rows, .cols = weight.cols, .codes = {}};
  m.zero_offset = weight.zero_offset;
  m.groups = weight.groups();
  m.group_cols = weight.group_cols;
  for (const CodePart& part : weight.parts) {
    if (part.role == Role::shape) continue;
    const std::byte* const bytes = data(part);
    const PartStrides strides = strides_of(weight, part);
    switch (part.role) {
      case Role::codes: m.codes = integers_of(weight, part, bytes); break;
      case Role::zeros: m.zeros = integers_of(weight, part, bytes); break;
      case Role::order: m.group_of_col = bytes; break;
      case Role::shape: break;
      case Role::scales:
        m.scales = bytes;
        m.scale_dtype = part.dtype;
        m.scale_row = strides.rows;
        m.scale_group = strides.cols;
        break;
    }
  }
  return m;
}

/// True if groups are consecutive columns. @pre m.group_of_col
bool is_in_order(const CodedMatrix& m) {
  for (Index col = 0; col < m.cols; ++col) {
    std::int32_t group = 0;
    std::memcpy(&group, m.group_of_col + col * Index{sizeof group}, sizeof group);
    if (group != col / m.group_cols) return false;
  }
  return true;
}

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
      case Method::awq_gemv:
      case Method::gptq:
      case Method::compressed_tensors: return coded(t);
      case Method::bitsandbytes:
        if (is(kWeight, DType::u8)) return table(t);
        if (is(kWeight, DType::i8)) return rows(t);
        break;
      case Method::hqq: return hqq(*this, t);
      case Method::torchao: return torchao(*this, t);
    }
    return std::optional<FoundCodes>();
  }

 private:
  Result<std::optional<FoundCodes>> coded(const CheckpointTensor& t) const {
    FoundCodes found;
    const CanonicalTensor& codes = spec()[*spec().find(t.name)];
    std::optional<Index> cols;
    if (const auto weight = packed_weight(form(), codes))
      cols = RESHARD_TRY(columns_of(*weight + "_shape", t));
    auto named = RESHARD_TRY(coded_weight(form(), spec(), codes, cols));
    if (!named) return std::optional<FoundCodes>();
    CodedWeight& weight = named->weight;
    found.tensor = std::move(named->name);
    found.shape = {weight.rows, weight.cols};
    found.dtype = values();
    for (const CodePart& part : weight.parts)
      if (part.role != Role::codes) found.parts.push_back(part.name);
    const CodedMatrix m =
        coded_matrix(weight, [&](const CodePart& part) { return data(*stored(part.name)); });
    if (m.group_of_col != nullptr) weight.in_order = is_in_order(m);
    found.codes = m;
    found.weight = std::move(weight);
    return std::optional(std::move(found));
  }

  /// The columns of words whose last ones need not be full, if the files say their shape.
  Result<std::optional<Index>> columns_of(const std::string& name,
                                          const CheckpointTensor& t) const {
    const CheckpointTensor* const shape = stored(name);
    if (shape == nullptr) return std::optional<Index>();
    const auto sizes = stored_sizes(files(), *shape);
    if (!sizes)
      return fail(Code::corrupt, fmt::format("'{}' is {} {}; it must be two integers", shape->name,
                                             reshard::name(shape->dtype), to_string(shape->shape)));
    const auto& said = *sizes;
    const Index k = 32 / form().bits, rows = t.shape[0], cols = t.shape[1] * k;
    if (said[0] != rows || said[1] < 0 || said[1] > cols || groups_of(said[1], k) != t.shape[1])
      return fail(Code::corrupt,
                  fmt::format("'{}' says [{}, {}], but '{}' has words for {}", shape->name, said[0],
                              said[1], t.name, to_string(Dims{rows, cols})));
    return std::optional<Index>(said[1]);
  }

  /// bitsandbytes' LLM.int8(): a scale of each row, which is its largest magnitude.
  Result<std::optional<FoundCodes>> rows(const CheckpointTensor& t) const {
    CodedMatrix m = signed_bytes(t);
    FoundCodes found{t.name, {m.rows, m.cols}, values(), {}};
    const std::string module = t.name.substr(0, t.name.size() - kWeight.size());
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
  const Finder finder(form, checkpoint, stored, values);
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
    FoundCodes& f = codes->second;
    RESHARD_TRY(out.tensors.add(f.tensor, f.shape, f.dtype));
    out.codes.emplace(f.tensor, f.codes);
    if (f.weight) out.weights.emplace(f.tensor, *std::move(f.weight));
  }
  return out;
}

Result<CodedTensors> coded_tensors(const ModelSpec& stored, const CodeForm& form, DType values) {
  std::map<std::string, NamedWeight> found;  // by the name of the codes
  std::set<std::string> parts;
  for (const CanonicalTensor& t : stored.tensors()) {
    auto one = RESHARD_TRY(coded_weight(form, stored, t));
    if (!one) continue;
    for (const CodePart& part : one->weight.parts)
      if (part.role != CodePart::Role::codes) parts.insert(part.name);
    found.emplace(t.name, *std::move(one));
  }
  CodedTensors out;
  for (const CanonicalTensor& t : stored.tensors()) {
    if (parts.contains(t.name)) continue;
    const auto codes = found.find(t.name);
    if (codes == found.end()) {
      RESHARD_TRY(out.tensors.add(t.name, t.shape, t.dtype, t.merged));
      continue;
    }
    auto& [name, weight] = codes->second;
    RESHARD_TRY(out.tensors.add(name, {weight.rows, weight.cols}, values));
    out.weights.emplace(name, std::move(weight));
  }
  return out;
}

}  // namespace reshard::identify
