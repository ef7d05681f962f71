// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/layout_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "reshard/base/check.h"
#include "reshard/base/hash.h"

namespace reshard {

LayoutBuilder::LayoutBuilder(std::string name, std::shared_ptr<const ModelSpec> model) {
  layout_.name_ = std::move(name);
  layout_.model_ = std::move(model);
  layout_.cuts_.push_back(DimCut{});
}

LayoutBuilder::LayoutBuilder(std::string name, std::shared_ptr<const ModelSpec> model,
                             const ModelLayout& like)
    : LayoutBuilder(std::move(name), std::move(model)) {
  layout_.meshes_ = like.meshes_;
  layout_.cuts_ = like.cuts_;
  layout_.ranks_ = like.ranks_;
  for (const RankSet& ranks : like.rank_sets_) add_ranks(ranks);
}

MeshId LayoutBuilder::add_mesh(Mesh mesh) {
  layout_.ranks_ =
      layout_.ranks_ | RankSet::range(mesh.first().value(), mesh.first().value() + mesh.size());
  layout_.meshes_.push_back(std::move(mesh));
  return MeshId(static_cast<MeshId::rep>(layout_.meshes_.size() - 1));
}

CutId LayoutBuilder::add_cut(const DimCut& cut) {
  auto& cuts = layout_.cuts_;
  auto it = std::find(cuts.begin(), cuts.end(), cut);
  if (it == cuts.end()) it = cuts.insert(cuts.end(), cut);
  return CutId(static_cast<CutId::rep>(it - cuts.begin()));
}

RankSetId LayoutBuilder::add_ranks(RankSet ranks) {
  auto& bucket = by_hash_[ranks.hash()];
  for (RankSetId id : bucket)
    if (layout_.rank_sets_[id.index()] == ranks) return id;
  const RankSetId id(static_cast<RankSetId::rep>(layout_.rank_sets_.size()));
  bucket.push_back(id);
  layout_.rank_sets_.push_back(std::move(ranks));
  return id;
}

namespace {

/// The ranks of a mesh whose coordinates on some axes are the given ones.
RankSet ranks_at(const Mesh& mesh, std::span<const std::pair<int, Index>> fixed) {
  const auto axes = static_cast<int>(mesh.axes().size());
  Dims at;
  std::array<bool, kMaxDims> is_fixed{};
  for (int a = 0; a < axes; ++a) at.push_back(0);
  for (auto [axis, coordinate] : fixed) {
    const auto a = static_cast<std::size_t>(axis);
    if (coordinate < 0 || coordinate >= mesh.axes()[a].size) return {};
    if (std::exchange(is_fixed[a], true) && at[axis] != coordinate) return {};
    at[axis] = coordinate;
  }
  RankSet ranks;
  for (int a = -1; a < axes;) {
    ranks.insert(mesh.rank_at(at));
    // The next combination of the other axes' coordinates.
    for (a = 0; a < axes; ++a) {
      if (is_fixed[static_cast<std::size_t>(a)]) continue;
      if (++at[a] < mesh.axes()[static_cast<std::size_t>(a)].size) break;
      at[a] = 0;
    }
  }
  return ranks;
}

}  // namespace

RankSetId LayoutBuilder::ranks_where(MeshId id, std::span<const std::pair<int, Index>> fixed) {
  std::uint64_t key = mix64(static_cast<std::uint64_t>(id.value()));
  for (auto [axis, coordinate] : fixed)
    key = mix64(key ^
                (static_cast<std::uint64_t>(axis) << 32 | static_cast<std::uint64_t>(coordinate)));
  if (const auto it = by_coordinates_.find(key); it != by_coordinates_.end()) return it->second;
  return by_coordinates_[key] = add_ranks(ranks_at(mesh(id), fixed));
}

SlotId LayoutBuilder::add(Slot slot) {
  layout_.slots_.push_back(std::move(slot));
  return SlotId(static_cast<SlotId::rep>(layout_.slots_.size() - 1));
}

namespace {

RankSet shifted(const RankSet& ranks, Rank::rep by) {
  if (by == 0) return ranks;
  RankSet out;
  ranks.for_each([&](Rank r) { out.insert(Rank(r.value() + by)); });
  return out;
}

Mesh shifted(const Mesh& mesh, Rank::rep by) {
  if (by == 0) return mesh;
  auto out = Mesh::make(mesh.axes(), Rank(mesh.first().value() + by));
  RESHARD_CHECK(out.has_value());
  return *std::move(out);
}

}  // namespace

void LayoutBuilder::add_all(const ModelLayout& part, Rank::rep shift) {
  const auto first_mesh = static_cast<MeshId::rep>(layout_.meshes_.size());
  for (const Mesh& mesh : part.meshes_) add_mesh(shifted(mesh, shift));
  std::vector<CutId> cuts;
  for (const DimCut& cut : part.cuts_) cuts.push_back(add_cut(cut));
  std::vector<RankSetId> rank_sets;
  for (const RankSet& ranks : part.rank_sets_)
    rank_sets.push_back(add_ranks(shifted(ranks, shift)));
  for (Slot slot : part.slots_) {
    slot.mesh = MeshId(slot.mesh.value() + first_mesh);
    slot.ranks = rank_sets[slot.ranks.index()];
    for (Section& section : slot.sections)
      for (CutId& cut : section.cuts) cut = cuts[cut.index()];
    add(std::move(slot));
  }
}

void LayoutBuilder::omit(TensorId id) {
  layout_.omitted_.resize(static_cast<std::size_t>(model().size()));
  layout_.omitted_[id.index()] = true;
}

Result<> LayoutBuilder::check_form(const Slot& slot, TensorId id, const Slot* first) const {
  const CanonicalTensor& t = model()[id];
  const StoredForm form{slot.dtype, slot.map};
  if (t.dtype != slot.dtype && !slot.casts)
    return fail(Code::unsupported,
                fmt::format("local tensor '{}' is {} but '{}' is {}; values are converted only "
                            "where a layout says so: with dtype=, or with casts in a layout of "
                            "one's own",
                            slot.name, name(slot.dtype), t.name, name(t.dtype)));
  const bool as_it_is = form == StoredForm{t.dtype, ValueMap::identity};
  if (!as_it_is && !(is_convertible(t.dtype) && is_convertible(slot.dtype)))
    return fail(Code::unsupported,
                fmt::format("local tensor '{}' is {} but '{}' is {}; values are converted between "
                            "F32, BF16 and F16 only",
                            slot.name, to_string(form), t.name, name(t.dtype)));
  if (first == nullptr || form == StoredForm{first->dtype, first->map}) return {};
  return fail(Code::unsupported, fmt::format("'{}' is stored as {} in local tensor '{}' and as {} "
                                             "in '{}'; a layout must store a tensor in one form",
                                             t.name, to_string({first->dtype, first->map}),
                                             first->name, to_string(form), slot.name));
}

Result<ModelLayout> LayoutBuilder::finish() && {
  ModelLayout& l = layout_;
  l.first_part_.assign(static_cast<std::size_t>(model().size()) + 1, 0);
  l.slots_of_set_.resize(l.rank_sets_.size());
  std::vector<const Slot*> first(static_cast<std::size_t>(model().size()));
  for (std::size_t s = 0; s < l.slots_.size(); ++s) {
    const Slot& slot = l.slots_[s];
    l.slots_of_set_[slot.ranks.index()].push_back(SlotId(static_cast<SlotId::rep>(s)));
    for (const Section& section : slot.sections) {
      for (const PlacedBox& p : section.parts) {
        RESHARD_TRY(check_form(slot, p.tensor, first[p.tensor.index()]));
        first[p.tensor.index()] = &slot;
        ++l.first_part_[p.tensor.index() + 1];
      }
    }
  }
  for (std::size_t i = 1; i < l.first_part_.size(); ++i) l.first_part_[i] += l.first_part_[i - 1];
  l.part_ids_.resize(static_cast<std::size_t>(l.first_part_.back()));
  auto next = l.first_part_;
  for (std::size_t s = 0; s < l.slots_.size(); ++s)
    for (std::size_t k = 0; k < l.slots_[s].sections.size(); ++k)
      for (std::size_t p = 0; p < l.slots_[s].sections[k].parts.size(); ++p)
        l.part_ids_[static_cast<std::size_t>(
            next[l.slots_[s].sections[k].parts[p].tensor.index()]++)] = {
            SlotId(static_cast<SlotId::rep>(s)), static_cast<std::int32_t>(k),
            static_cast<std::int32_t>(p)};
  l.digest_ = l.make_digest();
  return std::move(layout_);
}

Section whole_tensor(const ModelSpec& model, TensorId id, std::initializer_list<CutId> cuts) {
  Section section;
  section.extent = model[id].shape;
  std::copy(cuts.begin(), cuts.end(), section.cuts.begin());
  place(section, id, Box::whole(model[id].shape), Dims::filled(model[id].shape.size(), 0));
  return section;
}

void place(Section& section, TensorId id, const Box& box, Dims at, int first_dim) {
  PlacedBox p{id, box, at, {}};
  RESHARD_CHECK(at.size() == section.extent.size() && first_dim + box.rank() <= at.size());
  for (int i = 0; i < box.rank(); ++i) {
    p.dims[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(first_dim + i);
    RESHARD_CHECK(at[first_dim + i] >= 0 &&
                  at[first_dim + i] + box[i].size() <= section.extent[first_dim + i]);
  }
  section.parts.push_back(std::move(p));
}

}  // namespace reshard
