// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/placed_layouts.h"

#include <fmt/format.h>

#include <utility>

#include "reshard/model/layout_builder.h"

namespace reshard {
namespace {

Rank lowest(const RankSet& ranks) { return ranks.nth(0); }

RankSet moved(const RankSet& ranks, Rank::rep by) {
  RankSet out;
  ranks.for_each([&](Rank r) { out.insert(Rank(r.value() + by)); });
  return out;
}

/// Adds the slots of a layout, whose ranks move by `by`.
class Copier {
 public:
  Copier(LayoutBuilder& builder, const ModelLayout& layout, Rank::rep by)
      : builder_(builder), layout_(layout), by_(by) {}

  Result<> copy() {
    RESHARD_TRY(copy_ranks());
    for (SlotId id(0); id.value() < layout_.num_slots(); id = SlotId(id.value() + 1)) {
      Slot slot = layout_.slot(id);
      slot.mesh = RESHARD_TRY(mesh(slot.mesh));
      slot.ranks = builder_.add_ranks(moved(layout_.rank_set(slot.ranks), by_));
      for (Section& section : slot.sections)
        for (CutId& cut : section.cuts)
          if (cut.value() != 0) cut = builder_.add_cut(layout_.dim_cut(cut));
      builder_.add(std::move(slot));
    }
    return {};
  }

 private:
  /// A layout has the ranks of its meshes, also of those that no slot uses.
  Result<> copy_ranks() {
    const std::vector<Rank> all = moved(layout_.ranks(), by_).members();
    for (std::size_t i = 0, end = 0; i < all.size(); i = end) {
      for (end = i + 1; end < all.size() && all[end].value() == all[end - 1].value() + 1;) ++end;
      builder_.add_mesh(RESHARD_TRY(Mesh::make({{"rank", static_cast<Index>(end - i)}}, all[i])));
    }
    return {};
  }

  Result<MeshId> mesh(MeshId id) {
    if (id.index() >= meshes_.size()) meshes_.resize(id.index() + 1, MeshId(-1));
    if (meshes_[id.index()].value() < 0) {
      const Mesh& from = layout_.mesh(id);
      meshes_[id.index()] =
          builder_.add_mesh(RESHARD_TRY(Mesh::make(from.axes(), Rank(from.first().value() + by_))));
    }
    return meshes_[id.index()];
  }

  LayoutBuilder& builder_;
  const ModelLayout& layout_;
  const Rank::rep by_;
  std::vector<MeshId> meshes_;
};

}  // namespace

Result<ModelLayout> place_layouts(std::string name, std::span<const PlacedLayout> layouts) {
  if (layouts.empty()) return fail(Code::invalid_argument, "place_layouts: no layout");
  const ModelLayout& one = *layouts.front().layout;
  LayoutBuilder builder(std::move(name), one.shared_model());
  RankSet taken;
  for (const PlacedLayout& each : layouts) {
    const ModelLayout& layout = *each.layout;
    if (layout.model().digest() != one.model().digest())
      return fail(Code::invalid_argument, fmt::format("{} and {} are layouts of different models",
                                                      one.name(), layout.name()));
    const Rank::rep by = each.first.value() - lowest(layout.ranks()).value();
    const RankSet ranks = moved(layout.ranks(), by);
    if (each.first.value() < 0 || !(ranks & taken).empty())
      return fail(Code::invalid_argument,
                  fmt::format("{} cannot begin at rank {}, because ranks of it and others meet",
                              layout.name(), each.first.value()));
    taken = taken | ranks;
    RESHARD_TRY(Copier(builder, layout, by).copy());
  }
  for (TensorId id(0); id.value() < one.model().size(); id = TensorId(id.value() + 1)) {
    bool omitted = true;
    for (const PlacedLayout& each : layouts) omitted = omitted && each.layout->omits(id);
    if (omitted) builder.omit(id);
  }
  return std::move(builder).finish();
}

}  // namespace reshard
