// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/output/known_parts.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace reshard::output {
namespace {

/// A part of codes that is known without the source, and its weight; both null for other tensors.
struct KnownPart {
  const CodedWeight* weight = nullptr;
  const CodePart* part = nullptr;
};

KnownPart find_known(const ModelCodes& codes, const std::string& tensor) {
  for (const auto& [name, weight] : codes.weights)
    for (const CodePart& part : weight.parts)
      if (part.name == tensor && weight.is_known(part)) return {&weight, &part};
  return {};
}

/// Element i of the whole tensor.
Index element(const KnownPart& known, Index i) {
  if (known.part->role == CodePart::Role::order) return i / known.weight->group_cols;
  return i == 0 ? known.weight->rows : known.weight->cols;
}

template <class Integer>
void store(Index value, std::byte* at) {
  const auto integer = static_cast<Integer>(value);
  std::memcpy(at, &integer, sizeof integer);
}

}  // namespace

std::set<std::string> known_parts(const ModelCodes& codes) {
  std::set<std::string> names;
  for (const auto& [name, weight] : codes.weights)
    for (const CodePart& part : weight.parts)
      if (weight.is_known(part)) names.insert(part.name);
  return names;
}

std::vector<std::byte> known_part(const ModelCodes& codes, const ModelLayout& layout, Rank r,
                                  SlotId slot) {
  const LocalTensor local = layout.local(slot, r);
  std::vector<std::byte> out;
  for (const Fragment& f : local.fragments) {
    const KnownPart known = find_known(codes, layout.model()[f.tensor].name);
    if (known.part == nullptr) return {};
    const Index bytes = bits(known.part->dtype) / 8;
    out.resize(static_cast<std::size_t>(volume(local.shape) * bytes));
    for (Index i = 0; i < f.box[0].size(); ++i) {
      std::byte* const at = out.data() + (f.where.offset + i * f.where.strides[0]) * bytes;
      const Index value = element(known, f.box[0].begin() + i);
      known.part->dtype == DType::i64 ? store<std::int64_t>(value, at)
                                      : store<std::int32_t>(value, at);
    }
  }
  return out;
}

}  // namespace reshard::output
