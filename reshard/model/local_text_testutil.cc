// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/local_text_testutil.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace reshard {
namespace {

std::string short_name(std::string name) {
  if (name.ends_with(".weight")) name.resize(name.size() - 7);
  return name.substr(name.rfind('.') + 1);
}

/// Marks the elements of the box in a row-major flag array.
void mark(std::vector<bool>& held, const Dims& shape, const Box& box) {
  Dims at = box.origin();
  for (Index n = box.volume(); n > 0; --n) {
    Index i = 0;
    for (int k = 0; k < shape.size(); ++k) i = i * shape[k] + at[k];
    held[static_cast<std::size_t>(i)] = true;
    for (int k = shape.size() - 1; k >= 0 && ++at[k] == box[k].end(); --k) at[k] = box[k].begin();
  }
}

}  // namespace

std::string local_text(const ModelLayout& layout, const std::string& name, int rank) {
  for (SlotId id : layout.slots_of(Rank(rank))) {
    const Slot& slot = layout.slot(id);
    if (slot.name != name) continue;
    auto fragments = layout.local(id, Rank(rank)).fragments;
    std::sort(fragments.begin(), fragments.end(),
              [](const Fragment& a, const Fragment& b) { return a.where.offset < b.where.offset; });
    std::string text;
    for (const Fragment& f : fragments)
      text += short_name(layout.model()[f.tensor].name) + to_string(f.box) + "@" +
              std::to_string(f.where.offset) + " ";
    text += "of " + to_string(layout.stored_shape(id, Rank(rank)));
    if (slot.map != ValueMap::identity) text += " as " + std::string(reshard::name(slot.map));
    if (slot.dtype != DType::bf16) text += " " + std::string(reshard::name(slot.dtype));
    return text;
  }
  return "absent";
}

std::string local_names(const ModelLayout& layout, int rank) {
  std::string text;
  for (SlotId id : layout.slots_of(Rank(rank))) text += layout.slot(id).name + "\n";
  return text;
}

void expect_whole(const ModelLayout& layout) {
  const ModelSpec& model = layout.model();
  std::vector<std::vector<bool>> held;
  for (const CanonicalTensor& t : model.tensors())
    held.emplace_back(static_cast<std::size_t>(volume(t.shape)));
  layout.ranks().for_each([&](Rank r) {
    const auto ok = check_shard_map(layout, r);
    EXPECT_TRUE(ok) << ok.error().message;
    for (SlotId id : layout.slots_of(r))
      for (const Fragment& f : layout.local(id, r).fragments)
        mark(held[f.tensor.index()], model[f.tensor].shape, f.box);
  });
  for (std::size_t i = 0; i < held.size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    const auto missing = std::count(held[i].begin(), held[i].end(), false);
    if (!layout.omits(id))
      EXPECT_EQ(missing, 0) << layout.name() << ": '" << model[id].name << "'";
    else
      EXPECT_EQ(missing, static_cast<std::ptrdiff_t>(held[i].size())) << model[id].name;
  }
}

}  // namespace reshard
