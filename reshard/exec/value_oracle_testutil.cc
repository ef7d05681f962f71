// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/value_oracle_testutil.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/transform/convert.h"

namespace reshard {
namespace {

/// Calls f(tensor, element of the whole tensor, its bytes) for each element of each fragment.
template <class F>
void for_each_stored(const RankBuffers& buffers, F&& f) {
  const ModelLayout& layout = buffers.layout();
  for (Rank r : buffers.ranks()) {
    for (SlotId slot : layout.slots_of(r)) {
      const auto width = static_cast<std::size_t>(bits(layout.slot(slot).dtype) / 8);
      for (const Fragment& fragment : layout.local(slot, r).fragments) {
        for_each_element(layout.model(), fragment, [&](Index element, Index local) {
          f(fragment.tensor, element,
            std::span(buffers.at(r, slot) + local * static_cast<Index>(width), width));
        });
      }
    }
  }
}

/// One element as the source stores it: a small negative number, so that every map and its inverse
/// is defined.
std::vector<std::byte> source_value(const ModelLayout& from, TensorId id, Index element) {
  const StoredForm form = from.form(id);
  std::vector<std::byte> bytes(static_cast<std::size_t>(bits(form.dtype) / 8));
  const std::uint64_t random =
      mix64(static_cast<std::uint64_t>(id.value()) << 40 | static_cast<std::uint64_t>(element));
  if (!is_convertible(form.dtype)) {
    bytes[0] = static_cast<std::byte>(random);
    return bytes;
  }
  const float value = -0.5F - static_cast<float>(random % 4096) / 1024;
  std::byte raw[4];
  std::memcpy(raw, &value, 4);
  convert_values({{DType::f32}, {form.dtype}}, raw, bytes.data(), 1);
  return bytes;
}

std::vector<std::byte> target_value(const Planner& planner, TensorId id, Index element) {
  const auto stored = source_value(planner.source(), id, element);
  const Conversion conversion = planner.conversion(id);
  if (!conversion.converts()) return stored;
  std::vector<std::byte> bytes(static_cast<std::size_t>(bits(conversion.to.dtype) / 8));
  convert_values(conversion, stored.data(), bytes.data(), 1);
  return bytes;
}

}  // namespace

void fill_values(const RankBuffers& source) {
  for_each_stored(source, [&](TensorId id, Index element, std::span<std::byte> bytes) {
    std::ranges::copy(source_value(source.layout(), id, element), bytes.begin());
  });
}

Index count_wrong_values(const Planner& planner, const RankBuffers& target) {
  Index wrong = 0;
  for_each_stored(target, [&](TensorId id, Index element, std::span<std::byte> bytes) {
    wrong += !std::ranges::equal(target_value(planner, id, element), bytes);
  });
  return wrong;
}

}  // namespace reshard
