// SPDX-License-Identifier: Apache-2.0
#include "reshard/io/identify/codes/hqq.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "reshard/io/files/json.h"
#include "reshard/io/identify/tensor_lists.h"

namespace reshard::identify {
namespace {

constexpr std::string_view kHqqCodes = ".W_q";

/// How codes are packed, by HQQ's name.
struct Packing {
  std::string_view name;
  int bits, per_word;
  DType words;
};
constexpr std::array<Packing, 5> kPackings = {{{"8bit_u8", 8, 1, DType::u8},
                                               {"4bit_u8", 4, 2, DType::u8},
                                               {"3bit_32", 3, 10, DType::i32},
                                               {"2bit_u8", 2, 4, DType::u8},
                                               {"1bit_u8", 1, 8, DType::u8}}};

class HqqReader {
 public:
  HqqReader(const CodeFiles& files, const CheckpointTensor& codes)
      : files_(files),
        codes_(codes),
        module_(codes.name.substr(0, codes.name.size() - kHqqCodes.size())),
        found_{module_ + std::string(kWeight), {}, files.values(), {}} {}

  Result<FoundCodes> read() {
    RESHARD_TRY(check_form());
    const Packing how = RESHARD_TRY(packing());
    const std::string type = RESHARD_TRY(text("compute_dtype"));
    const auto dtype = type.starts_with("torch.") ? value_dtype(type.substr(6)) : std::nullopt;
    if (!dtype) return unread("compute_dtype " + as_word(type));
    found_.dtype = *dtype;
    RESHARD_TRY(take_matrix(how));
    found_.codes = m_;
    take_descriptions();
    return std::move(found_);
  }

 private:
  tl::unexpected<Error> unread(const std::string& what) const {
    return fail(Code::unsupported, fmt::format("'{}' is stored as {} with {}, which is not read",
                                               codes_.name, files_.form().text, what));
  }
  std::string name_of(const char* part) const { return fmt::format("{}.{}", module_, part); }
  Result<const CheckpointTensor*> part(const char* part, std::initializer_list<DType> dtypes,
                                       const Dims& shape) {
    return files_.part(found_, codes_, {name_of(part), dtypes, shape});
  }

  /// A number that describes the codes.
  Result<Index> integer(const char* name) {
    std::int32_t value = 0;
    const auto* const t = RESHARD_TRY(part(name, {DType::i32}, {}));
    std::memcpy(&value, files_.data(*t), sizeof value);
    return Index{value};
  }
  /// False if it is missing.
  Result<bool> flag(const char* name) {
    if (files_.stored(name_of(name)) == nullptr) return false;
    return *files_.data(*RESHARD_TRY(part(name, {DType::u8}, {}))) != std::byte{0};
  }
  /// A name, a byte for each character.
  Result<std::string> text(const char* name) {
    constexpr Index kMax = 64;
    const CheckpointTensor* const there = files_.stored(name_of(name));
    const Index size = there != nullptr && there->shape.size() == 1 ? there->shape[0] : 0;
    const auto* const t = RESHARD_TRY(part(name, {DType::u8}, {std::min(size, kMax)}));
    const auto bytes = files_.files().data(*t);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  Result<> check_form() {
    if (RESHARD_TRY(flag("view_as_float"))) return unread("codes as floats (view_as_float)");
    for (const char* name : {"quant_scale", "quant_zero"})
      if (RESHARD_TRY(flag(name))) return unread(fmt::format("quantised scales ({})", name));
    if (files_.stored(name_of("channel_wise")) != nullptr && !RESHARD_TRY(flag("channel_wise")))
      return unread("one scale of the tensor (channel_wise)");
    return {};
  }

  Result<Packing> packing() {
    const std::string name = RESHARD_TRY(text("packing"));
    const auto* const how = std::ranges::find(kPackings, name, &Packing::name);
    if (how == kPackings.end()) return unread("packing " + as_word(name));
    return *how;
  }

  Result<> take_matrix(const Packing& how) {
    const CheckpointTensor* const shape = RESHARD_TRY(part("shape", {DType::i64}, Dims{2}));
    const auto said = stored_sizes(files_.files(), *shape);
    const Index group = RESHARD_TRY(integer("group_size")), axis = RESHARD_TRY(integer("axis"));
    Index count = 0;
    if (!said || (*said)[0] < 1 || (*said)[1] < 1 ||
        __builtin_mul_overflow((*said)[0], (*said)[1], &count) || count > kMaxElements ||
        group < 1 || count % group != 0 || (axis != 0 && axis != 1))
      return fail(Code::corrupt, fmt::format("'{}' has no shape in groups of {} along axis {}",
                                             shape->name, group, axis));
    found_.shape = {(*said)[0], (*said)[1]};
    m_.rows = axis == 1 ? count / group : group;
    m_.cols = count / m_.rows;
    m_.rows_are_groups = axis == 1;
    m_.bits = how.bits;
    m_.per_word = how.per_word;
    m_.word_bytes = how.words == DType::u8 ? 1 : 4;
    m_.word_rows = groups_of(m_.rows, how.per_word);
    m_.words = files_.data(codes_);
    if (codes_.dtype != how.words || codes_.shape != Dims{m_.word_rows, m_.cols})
      return fail(Code::unsupported,
                  fmt::format("'{}' is {} {}; of {} packed as {} it must be {} {}", codes_.name,
                              name(codes_.dtype), to_string(codes_.shape), to_string(found_.shape),
                              how.name, name(how.words), to_string(Dims{m_.word_rows, m_.cols})));
    const Dims scales = axis == 1 ? Dims{m_.rows, 1} : Dims{1, m_.cols};
    m_.dtype = found_.dtype;
    m_.scales = files_.data(*RESHARD_TRY(part("scale", {m_.dtype}, scales)));
    m_.zeros = files_.data(*RESHARD_TRY(part("zero", {m_.dtype}, scales)));
    return {};
  }

  /// Takes the tensors that say how the codes were made, or repeat what other tensors say.
  void take_descriptions() {
    for (const char* part : {"nbits", "unpack_view_dtype", "offload_meta", "encoded_state_dict",
                             "stores_quant_config", "optimize", "round_zero"})
      if (files_.stored(name_of(part)) != nullptr) found_.parts.push_back(name_of(part));
  }

  static constexpr Index kMaxElements = Index{1} << 48;

  const CodeFiles& files_;
  const CheckpointTensor& codes_;
  std::string module_;
  FoundCodes found_;
  PlaneMatrix m_;
};

}  // namespace

Result<std::optional<FoundCodes>> hqq(const CodeFiles& files, const CheckpointTensor& t) {
  if (!t.name.ends_with(kHqqCodes) || t.shape.size() != 2) return std::optional<FoundCodes>();
  return std::optional(RESHARD_TRY(HqqReader(files, t).read()));
}

}  // namespace reshard::identify
