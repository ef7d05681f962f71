// SPDX-License-Identifier: Apache-2.0
#include "reshard/refit/session/quantised_oracle_testutil.h"

#include <cmath>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "reshard/base/check.h"
#include "reshard/base/hash.h"
#include "reshard/exec/element_oracle_testutil.h"
#include "reshard/exec/in_process.h"
#include "reshard/model/configs_testutil.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/model/families.h"
#include "reshard/transform/convert.h"
#include "reshard/transform/quantise.h"

namespace reshard {
namespace {

/// A canonical tensor at a version, row-major, as `dtype` stores it: runs of 37 elements of one
/// magnitude, some of zeros.
std::vector<std::byte> tensor_values(TensorId id, Index elements, DType dtype,
                                     std::int64_t version) {
  const auto random_of = [&](Index i) {
    return mix64(static_cast<std::uint64_t>(id.value()) * 0x9e3779b97f4a7c15 +
                 (static_cast<std::uint64_t>(i) << 20) + static_cast<std::uint64_t>(version));
  };
  std::vector<float> values(static_cast<std::size_t>(elements));
  float magnitude = 0;
  for (Index element = 0; element < elements; ++element) {
    if (element % 37 == 0) {
      const std::uint64_t run = random_of(element / 37);
      magnitude = run % 11 == 0 ? 0 : std::ldexp(1.0F, static_cast<int>(run % 9) - 4);
    }
    const float unit = static_cast<float>(random_of(element + 7) % 8191) / 4096 - 1;
    values[static_cast<std::size_t>(element)] = magnitude == 0 ? 0 : unit * magnitude;
  }
  std::vector<std::byte> stored(static_cast<std::size_t>(elements * bits(dtype) / 8));
  convert_values({{DType::f32}, {dtype}}, reinterpret_cast<const std::byte*>(values.data()),
                 stored.data(), elements);
  return stored;
}

void fill_plain(const RankBuffers& values, std::int64_t version) {
  const ModelLayout& layout = values.layout();
  std::map<std::pair<TensorId, DType>, std::vector<std::byte>> tensors;
  for (const Rank r : values.ranks())
    for (const SlotId slot : layout.slots_of(r))
      for (const Fragment& fragment : layout.local(slot, r).fragments) {
        const DType dtype = layout.slot(slot).dtype;
        const Index width = bits(dtype) / 8;
        std::vector<std::byte>& tensor = tensors[{fragment.tensor, dtype}];
        if (tensor.empty())
          tensor = tensor_values(fragment.tensor, volume(layout.model()[fragment.tensor].shape),
                                 dtype, version);
        const std::byte* const from = tensor.data();
        std::byte* const to = values.at(r, slot);
        for_each_element(layout.model(), fragment, [=](Index element, Index local) {
          std::memcpy(to + local * width, from + element * width, static_cast<std::size_t>(width));
        });
      }
}

void move_all(const RankBuffers& from, const RankBuffers& to) {
  const Planner planner = *Planner::make(from.shared_layout(), to.shared_layout());
  auto refit = *InProcessRefit::prepare(planner, from, to, {.threads = 1, .progress = {}});
  RESHARD_CHECK(refit.run().has_value());
}

template <class F>
void for_each_matrix(const QuantisedLayout& layout, const RankBuffers& values,
                     const RankBuffers& stored, F&& f) {
  const QuantFormat& format = layout.choice.format;
  for (const Rank r : values.ranks())
    for (const auto& pair : layout.pairs) {
      const Slot& slot = layout.values->slot(pair.values);
      if (!layout.values->rank_set(slot.ranks).contains(r)) continue;
      const Index width = bits(slot.dtype) / 8, scale = bits(format.scale) / 8;
      for (const QuantBlockArea& a : block_areas(layout, pair, r))
        f(FloatMatrix{values.at(r, pair.values) + a.data_offset * width, slot.dtype, a.rows, a.cols,
                      a.data_row * width},
          QuantMatrix{
              format, stored.at(r, pair.data) + a.data_offset * bits(format.data) / 8, a.rows,
              a.cols, a.data_row * bits(format.data) / 8,
              stored.at(r, pair.scales) + a.scale_offset * scale, a.scale_row * scale,
              pair.factor.value() < 0 ? nullptr : stored.at(r, pair.factor) + a.factor_offset * 4});
    }
}

void copy_plain(const OracleSide& side) {
  const QuantisedLayout& layout = *side.quantised;
  for (const Rank r : side.values->ranks())
    for (const SlotId slot : layout.values->slots_of(r))
      if (const SlotId plain = layout.plain[slot.index()]; plain.value() >= 0)
        if (side.values->bytes(r, slot) > 0)
          std::memcpy(side.stored->at(r, plain), side.values->at(r, slot),
                      static_cast<std::size_t>(side.values->bytes(r, slot)));
}

/// From plain values of another layout, all of whose blocks are whole where they are made.
void quantise_side(OracleSide& side, const RankBuffers& any_values) {
  copy_plain(side);
  if (side.quantised->choice.grid == BlockGrid::local) {
    for_each_matrix(*side.quantised, *side.values, *side.stored,
                    [](const FloatMatrix& from, const QuantMatrix& to) { quantise(from, to); });
    return;
  }
  const auto model = side.values->layout().shared_model();
  const auto spec = parse_layout("hf:shards=1");
  auto plain = std::make_shared<const ModelLayout>(*hf_layout(*spec, {model, nullptr}));
  OracleSide whole(plain, side.quantised->choice);
  move_all(any_values, *whole.values);
  copy_plain(whole);
  for_each_matrix(*whole.quantised, *whole.values, *whole.stored,
                  [](const FloatMatrix& from, const QuantMatrix& to) { quantise(from, to); });
  move_all(*whole.stored, *side.stored);
}

}  // namespace

OracleSide::OracleSide(std::shared_ptr<const ModelLayout> plain)
    : layout(plain), values(std::make_shared<RankBuffers>(allocate_all(plain))), stored(values) {}

OracleSide::OracleSide(std::shared_ptr<const ModelLayout> plain, QuantChoice choice) {
  auto made = quantise_layout(plain, std::move(choice));
  if (!made) throw std::runtime_error(made.error().message);
  quantised = std::make_shared<const QuantisedLayout>(*std::move(made));
  values = std::make_shared<RankBuffers>(allocate_all(quantised->values));
  stored = std::make_shared<RankBuffers>(allocate_all(quantised->stored));
}

void fill_sides(OracleSide& source, OracleSide& target, std::int64_t version) {
  fill_plain(*source.values, version);
  if (source.quantised != nullptr) {
    quantise_side(source, *source.values);
    for_each_matrix(*source.quantised, *source.values, *source.stored,
                    [](const FloatMatrix& to, const QuantMatrix& from) {
                      dequantise_rows(from, to, 0, to.rows);
                    });
  }
  move_all(*source.values, *target.values);
  if (target.quantised != nullptr) quantise_side(target, *source.values);
}

void move_stored(const OracleSide& source, OracleSide& target) {
  move_all(*source.stored, *target.stored);
}

std::set<std::string> projections(const ModelSpec& model) {
  std::set<std::string> names;
  for (const CanonicalTensor& t : model.tensors())
    if (t.name.find("_proj.weight") != std::string::npos) names.insert(t.name);
  return names;
}

Index different_bytes(const RankBuffers& a, const RankBuffers& b, Rank r) {
  Index different = 0;
  for (const SlotId slot : a.layout().slots_of(r)) {
    const std::byte *const as = a.at(r, slot), *const bs = b.at(r, slot);
    const Index bytes = a.bytes(r, slot);
    for (Index i = 0; i < bytes; ++i) different += as[i] != bs[i] ? 1 : 0;
  }
  return different;
}

}  // namespace reshard
