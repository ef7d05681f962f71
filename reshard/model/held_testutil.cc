// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/held_testutil.h"

#include <algorithm>
#include <functional>

namespace reshard {
namespace {

/// "model.layers.0.self_attn.q_proj.weight" -> "q_proj"; "...mixer.A_log" -> "A_log".
std::string short_name(std::string name) {
  for (const char* kind : {".weight", ".bias"})
    if (name.ends_with(kind)) name.resize(name.rfind('.'));
  return name.substr(name.rfind('.') + 1);
}

std::string text_of(const ModelLayout& layout, const std::string& name, int rank,
                    const std::function<std::string(const LocalTensor&, const Fragment&)>& print) {
  const auto id = slot_named(layout, name, rank);
  if (!id) return "absent";
  LocalTensor t = layout.local(*id, Rank(rank));
  std::stable_sort(
      t.fragments.begin(), t.fragments.end(),
      [](const Fragment& a, const Fragment& b) { return a.where.offset < b.where.offset; });
  std::string text;
  for (const Fragment& f : t.fragments)
    text += (text.empty() ? "" : " ") + short_name(layout.model()[f.tensor].name) + print(t, f);
  return text;
}

/// Marks the row-major indices of a box of a tensor of this shape.
void mark(std::vector<bool>& held, const Dims& shape, const Box& box) {
  const Dims strides = row_major(shape);
  for (Index i = 0; i < box.volume(); ++i) {
    Index rest = i, at = 0;
    for (int k = box.rank() - 1; k >= 0; --k) {
      at += (box[k].begin() + rest % box[k].size()) * strides[k];
      rest /= box[k].size();
    }
    held[static_cast<std::size_t>(at)] = true;
  }
}

}  // namespace

std::optional<SlotId> slot_named(const ModelLayout& layout, const std::string& name, int rank) {
  for (SlotId id : layout.slots_of(Rank(rank)))
    if (layout.slot(id).name == name) return id;
  return std::nullopt;
}

std::string shape_on(const ModelLayout& layout, const std::string& name, int rank) {
  const auto id = slot_named(layout, name, rank);
  return id ? to_string(layout.stored_shape(*id, Rank(rank))) : "absent";
}

std::vector<std::string> names_on(const ModelLayout& layout, int rank, const std::string& part) {
  std::vector<std::string> names;
  for (SlotId id : layout.slots_of(Rank(rank)))
    if (layout.slot(id).name.find(part) != std::string::npos) names.push_back(layout.slot(id).name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string rows_on(const ModelLayout& layout, const std::string& name, int rank) {
  const auto print = [](const LocalTensor& t, const Fragment& f) {
    return to_string(f.box[0]) + "+" + std::to_string(f.where.offset / row_major(t.shape)[0]);
  };
  const std::string text = text_of(layout, name, rank, print);
  if (text == "absent") return text;
  const Dims shape = layout.local_shape(*slot_named(layout, name, rank), Rank(rank));
  return text + " of " + std::to_string(shape[0]);
}

std::string boxes_on(const ModelLayout& layout, const std::string& name, int rank) {
  return text_of(layout, name, rank, [](const LocalTensor&, const Fragment& f) {
    std::string text = to_string(f.box) + "@" + std::to_string(f.where.offset);
    for (int i = 0; i < f.box.rank(); ++i)
      text += (i == 0 ? ":" : ",") + std::to_string(f.where.strides[i]);
    return text;
  });
}

std::string first_missing(const ModelLayout& layout) {
  const ModelSpec& model = layout.model();
  std::vector<std::vector<bool>> held;
  for (const CanonicalTensor& t : model.tensors())
    held.emplace_back(static_cast<std::size_t>(volume(t.shape)));
  layout.ranks().for_each([&](Rank r) {
    for (SlotId id : layout.slots_of(r))
      for (const Fragment& f : layout.local(id, r).fragments)
        mark(held[f.tensor.index()], model[f.tensor].shape, f.box);
  });
  for (std::size_t t = 0; t < held.size(); ++t) {
    const TensorId id(static_cast<TensorId::rep>(t));
    const auto missing = std::find(held[t].begin(), held[t].end(), false);
    if (missing == held[t].end() || layout.omits(id)) continue;
    return model[id].name + " element " + std::to_string(missing - held[t].begin());
  }
  return "";
}

}  // namespace reshard
