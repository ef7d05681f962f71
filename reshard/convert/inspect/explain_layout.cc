// SPDX-License-Identifier: Apache-2.0
#include "reshard/convert/inspect/explain_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

namespace reshard {
namespace {

/// "tp=4" or "tp*dp=8"; empty where the cut leaves the dimension whole.
std::string cut_text(const DimCut& cut, const Mesh& mesh) {
  std::string axes;
  for (int i = 0; i < cut.num_axes; ++i) {
    const Axis& axis = mesh.axes()[static_cast<std::size_t>(cut.axes[static_cast<std::size_t>(i)])];
    if (axis.size > 1) axes += (axes.empty() ? "" : "*") + axis.name;
  }
  return axes.empty() ? axes : fmt::format("{}={}", axes, num_parts(cut, mesh));
}

void append(std::string& text, const std::string& more) {
  if (!text.empty()) text += "; ";
  text += more;
}

/// The name of the canonical dimension that full dimension `full` holds.
std::string dimension_text(const PlacedBox& part, int rank, int full) {
  for (int i = 0; i < rank; ++i)
    if (part.dims[static_cast<std::size_t>(i)] == full) return fmt::format("dim {}", i);
  return "among those stacked";
}

class Explainer {
 public:
  Explainer(const ModelLayout& layout, const SlotFiles& files) : layout_(layout), files_(files) {}

  std::vector<KindInLayout> explain() {
    for (Index i = 0; i < layout_.model().size(); ++i) add(TensorId(static_cast<TensorId::rep>(i)));
    return std::move(kinds_);
  }

 private:
  void add(TensorId id) {
    const std::string pattern = pattern_of(layout_.model()[id].name);
    const auto places = layout_.parts_of(id);
    if (places.empty()) add(pattern, "", "no rank holds it", SlotId(-1));
    // Places of one slot are neighbours: they are ascending.
    for (std::size_t i = 0; i < places.size();) {
      std::size_t end = i + 1;
      while (end < places.size() && places[end].slot == places[i].slot) ++end;
      const Slot& slot = layout_.slot(places[i].slot);
      add(pattern, pattern_of(files_.file_tensor(places[i].slot, first_of(slot)).name),
          how(id, places[i], static_cast<Index>(end - i)), places[i].slot);
      i = end;
    }
  }

  void add(const std::string& pattern, std::string local, std::string text, SlotId slot) {
    const auto [at, fresh] = known_.try_emplace(std::tuple(pattern, local, text), kinds_.size());
    if (fresh) {
      KindInLayout kind{pattern, std::move(local), std::move(text), {}, 0, 0};
      if (slot.value() >= 0) {
        const RankSet& ranks = layout_.rank_set(layout_.slot(slot).ranks);
        kind.ranks = ranks.size();
        kind.shape = files_.file_tensor(slot, ranks.members().front()).shape;
      }
      kinds_.push_back(std::move(kind));
    }
    ++kinds_[at->second].count;
  }

  Rank first_of(const Slot& slot) const { return layout_.rank_set(slot.ranks).members().front(); }

  std::string how(TensorId id, const PartId& place, Index pieces) {
    const Slot& slot = layout_.slot(place.slot);
    const Section& section = slot.sections[static_cast<std::size_t>(place.section)];
    const PlacedBox& part = section.parts[static_cast<std::size_t>(place.part)];
    const CanonicalTensor& tensor = layout_.model()[id];
    std::string text;
    for (int d = 0; d < section.extent.size(); ++d) {
      const auto cut = layout_.dim_cut(section.cuts[static_cast<std::size_t>(d)]);
      const std::string axes = cut_text(cut, layout_.mesh(slot.mesh));
      if (axes.empty()) continue;
      append(text, fmt::format("{} over {}", dimension_text(part, tensor.shape.size(), d), axes));
      if (cut.rule == CutRule::spread &&
          section.extent[d] / cut.granule < num_parts(cut, layout_.mesh(slot.mesh)))
        text += ", repeated";
    }
    if (text.empty()) text = "whole";
    if (pieces > 1) append(text, fmt::format("in {} pieces", pieces));
    if (const Index others = tensors_in(place.slot) - 1; others > 0)
      append(text, fmt::format("beside {} other{}", others, others == 1 ? "" : "s"));
    if (slot.padded) append(text, "padded");
    if (slot.dtype != tensor.dtype) append(text, fmt::format("as {}", name(slot.dtype)));
    if (slot.map != ValueMap::identity) append(text, std::string(name(slot.map)));
    if (slot.rule > 0) append(text, fmt::format("by rule {}", slot.rule));
    return text;
  }

  /// How many canonical tensors a local tensor is made of.
  Index tensors_in(SlotId id) {
    const auto [at, fresh] = tensors_in_.try_emplace(id.value(), 0);
    if (!fresh) return at->second;
    std::set<TensorId::rep> tensors;
    for (const Section& section : layout_.slot(id).sections)
      for (const PlacedBox& part : section.parts) tensors.insert(part.tensor.value());
    return at->second = static_cast<Index>(tensors.size());
  }

  const ModelLayout& layout_;
  const SlotFiles& files_;
  std::vector<KindInLayout> kinds_;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> known_;
  std::unordered_map<SlotId::rep, Index> tensors_in_;
};

}  // namespace

std::vector<KindInLayout> explain_layout(const ModelLayout& layout, const SlotFiles& files) {
  return Explainer(layout, files).explain();
}

RankBytes bytes_per_rank(const ModelLayout& layout) {
  RankBytes bytes{layout.ranks().empty() ? 0 : std::numeric_limits<Index>::max(), 0};
  layout.ranks().for_each([&](Rank r) {
    const Index here = local_bytes(layout, r);
    bytes = {std::min(bytes.least, here), std::max(bytes.most, here)};
  });
  return bytes;
}

}  // namespace reshard
