// SPDX-License-Identifier: Apache-2.0
// Refits that deliver some tensors of a model, and what the target must hold after them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/hash.h"
#include "reshard/model/elements_testutil.h"
#include "reshard/model/layout_builder.h"
#include "reshard/refit/session/quantised_suite_testutil.h"

namespace reshard::quantised {

/// Names a part of a model that a refit does not deliver.
struct Ignored {
  std::string name;
  std::function<bool(const std::string&)> has;
};
inline std::ostream& operator<<(std::ostream& out, const Ignored& i) { return out << i.name; }

inline std::vector<Ignored> ignored_parts() {
  const auto with = [](std::string text) {
    return [text](const std::string& name) { return name.find(text) != std::string::npos; };
  };
  return {{"up_projections", with("up_proj")},
          {"an_expert", with(".experts.1.")},
          {"keys", with("k_proj")},
          {"a_layer", with("layers.1.")},
          {"any", [](const std::string& name) { return hash64(name) % 3 == 0; }}};
}

/// For each TensorId, whether the tensor is delivered.
inline std::vector<bool> delivered_of(const ModelSpec& model, const Ignored& ignored) {
  std::vector<bool> out;
  for (const CanonicalTensor& t : model.tensors()) out.push_back(!ignored.has(t.name));
  return out;
}

/// A layout whose local tensors have padding in place of what is not delivered.
inline std::shared_ptr<const ModelLayout> without(const ModelLayout& layout,
                                                  const std::vector<bool>& delivered) {
  LayoutBuilder out("part of " + layout.name(), layout.shared_model(), layout);
  for (Index i = 0; i < layout.num_slots(); ++i) {
    Slot slot = layout.slot(SlotId(static_cast<SlotId::rep>(i)));
    for (Section& section : slot.sections)
      slot.padded |= std::erase_if(section.parts, [&](const PlacedBox& part) {
                       return !delivered[part.tensor.index()];
                     }) > 0;
    out.add(std::move(slot));
  }
  return std::make_shared<const ModelLayout>(*std::move(out).finish());
}

/// A job whose source is plain and lacks tensors.
struct PartialJob {
  PartialJob(const Case& c, const Ignored& ignored)
      : whole(c),
        delivered(delivered_of(*whole.model, ignored)),
        source(without(*whole.source.side().values(), delivered)) {
    for (const CanonicalTensor& t : whole.model->tensors())
      if (ignored.has(t.name)) names.insert(t.name);
  }
  Job whole;
  std::vector<bool> delivered;
  std::shared_ptr<const ModelLayout> source;
  std::set<std::string> names;
};

/// Bytes of all local tensors of some ranks that are neither as before nor the oracle's; and of
/// elements that are not what their tensor says: the oracle's if it is delivered, else as before.
inline Index wrong_after_part(const OracleSide& oracle, const RankBuffers& now, std::byte before,
                              const std::vector<bool>& delivered, std::span<const Rank> ranks) {
  Index wrong = 0;
  const auto check_all = [&](const std::byte* is, const std::byte* right, Index bytes) {
    for (Index i = 0; i < bytes; ++i) wrong += is[i] != before && is[i] != right[i];
  };
  const auto check_elements = [&](const ModelLayout& values, SlotId slot, SlotId stored, Rank r) {
    const Index width = bits(now.layout().slot(stored).dtype);
    const std::byte *const is = now.at(r, stored), *const right = oracle.stored->at(r, stored);
    for (const Fragment& f : values.local(slot, r).fragments) {
      const bool fresh = delivered[f.tensor.index()];
      for_each_element(values.model(), f, [&](Index, Index local) {
        for (Index i = local * width / 8; i < (local * width + width + 7) / 8; ++i)
          wrong += is[i] != (fresh ? right[i] : before);
      });
    }
  };
  const ModelLayout& values = *oracle.side().values();
  for (const Rank r : ranks) {
    for (const SlotId slot : now.layout().slots_of(r))
      check_all(now.at(r, slot), oracle.stored->at(r, slot), now.bytes(r, slot));
    if (oracle.quantised == nullptr) {
      for (const SlotId slot : values.slots_of(r)) check_elements(values, slot, slot, r);
      continue;
    }
    for (const auto& pair : oracle.quantised->pairs)
      if (values.rank_set(values.slot(pair.values).ranks).contains(r))
        check_elements(values, pair.values, pair.data, r);
    for (const SlotId slot : values.slots_of(r))
      if (const SlotId plain = oracle.quantised->plain[slot.index()]; plain.value() >= 0)
        check_elements(values, slot, plain, r);
  }
  return wrong;
}

/// Sets every byte.
inline void fill_bytes(const RankBuffers& memory, std::byte value) {
  for (const Rank r : memory.ranks())
    for (const SlotId slot : memory.layout().slots_of(r))
      if (memory.bytes(r, slot) > 0)
        std::memset(memory.at(r, slot), static_cast<int>(value),
                    static_cast<std::size_t>(memory.bytes(r, slot)));
}

/// Fills a source that lacks tensors from one of all of them.
inline void copy_part(const RankBuffers& all, const RankBuffers& part) {
  for (const Rank r : part.ranks())
    for (const SlotId slot : part.layout().slots_of(r))
      if (part.bytes(r, slot) > 0)
        std::memcpy(part.at(r, slot), all.at(r, slot),
                    static_cast<std::size_t>(part.bytes(r, slot)));
}

}  // namespace reshard::quantised
