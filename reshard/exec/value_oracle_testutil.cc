// SPDX-License-Identifier: Apache-2.0
#include "reshard/exec/value_oracle_testutil.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

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

/// The bytes of one element, of which its dtype has the first.
using Element = std::array<std::byte, 4>;

/// One element as the source stores it: a small negative number, so that every map and its inverse
/// is defined.
Element source_value(const ModelLayout& from, TensorId id, Index element) {
  const StoredForm form = from.form(id);
  Element bytes{};
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

Element target_value(const Planner& planner, TensorId id, Index element) {
  const Element stored = source_value(planner.source(), id, element);
  const Conversion conversion = planner.conversion(id);
  if (!conversion.converts()) return stored;
  Element bytes{};
  convert_values(conversion, stored.data(), bytes.data(), 1);
  return bytes;
}

}  // namespace

void fill_values(const RankBuffers& source) {
  for_each_stored(source, [&](TensorId id, Index element, std::span<std::byte> bytes) {
    std::ranges::copy_n(source_value(source.layout(), id, element).begin(), std::ssize(bytes),
                        bytes.begin());
  });
}

Index count_wrong_values(const Planner& planner, const RankBuffers& target) {
  Index wrong = 0;
  for_each_stored(target, [&](TensorId id, Index element, std::span<std::byte> bytes) {
    const Element right = target_value(planner, id, element);
    wrong += !std::equal(bytes.begin(), bytes.end(), right.begin());
  });
  return wrong;
}

}  // namespace reshard
