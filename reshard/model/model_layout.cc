// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/model_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/hash.h"

namespace reshard {
namespace {

Dims coordinates_of(const Mesh& mesh, Rank r) {
  Dims c;
  for (int i = 0; i < static_cast<int>(mesh.axes().size()); ++i) c.push_back(mesh.coordinate(r, i));
  return c;
}

}  // namespace

Interval PlacedBox::within(int i, Interval held) const {
  const Index first = at[dims[static_cast<std::size_t>(i)]], by = step(i);
  const auto reach = [&](Index full) {
    return std::clamp<Index>((full - first + by - 1) / by, 0, box[i].size());
  };
  return shift(Interval{held.begin() <= first ? 0 : reach(held.begin()),
                        held.end() <= first ? 0 : reach(held.end())},
               box[i].begin());
}

/// A rank's piece of a section's full tensor: an interval per full dimension, possibly empty.
struct ModelLayout::LocalPiece {
  std::array<Interval, kMaxDims> dims;
  Interval operator[](int i) const { return dims[static_cast<std::size_t>(i)]; }

  /// Extends the shape of a local tensor by this piece of rank `rank`.
  void stack_on(Dims& shape, int stack_dim, int rank, bool is_first) const {
    for (int i = 0; i < rank && is_first; ++i) shape.push_back((*this)[i].size());
    if (!is_first) shape[stack_dim] += (*this)[stack_dim].size();
  }
};

ModelLayout::LocalPiece ModelLayout::local_piece(const Slot& slot, const Section& section,
                                                 const Dims& coordinates) const {
  LocalPiece h;
  for (int i = 0; i < section.extent.size(); ++i) {
    const CutId id = section.cuts[static_cast<std::size_t>(i)];
    h.dims[static_cast<std::size_t>(i)] =
        id == CutId(0) ? Interval{0, section.extent[i]}
                       : cut(dim_cut(id), mesh(slot.mesh), section.extent[i], coordinates);
  }
  return h;
}

std::vector<SlotId> ModelLayout::slots_of(Rank r) const {
  std::vector<SlotId> out;
  for (std::size_t s = 0; s < rank_sets_.size(); ++s)
    if (!slots_of_set_[s].empty() && rank_sets_[s].contains(r))
      out.insert(out.end(), slots_of_set_[s].begin(), slots_of_set_[s].end());
  std::sort(out.begin(), out.end());
  return out;
}

Dims ModelLayout::local_shape(SlotId id, Rank r) const {
  const Slot& s = slot(id);
  const Dims coordinates = coordinates_of(mesh(s.mesh), r);
  Dims shape;
  for (std::size_t k = 0; k < s.sections.size(); ++k) {
    const LocalPiece h = local_piece(s, s.sections[k], coordinates);
    h.stack_on(shape, s.stack_dim, s.sections[k].extent.size(), k == 0);
  }
  return shape;
}

std::span<const PartId> ModelLayout::parts_of(TensorId id) const {
  const auto begin = first_part_[id.index()], end = first_part_[id.index() + 1];
  return std::span(part_ids_).subspan(static_cast<std::size_t>(begin),
                                      static_cast<std::size_t>(end - begin));
}

StoredForm ModelLayout::form(TensorId id) const {
  const auto parts = parts_of(id);
  if (parts.empty()) return {model()[id].dtype, ValueMap::identity};
  const Slot& s = slot(parts[0].slot);
  return {s.dtype, s.map};
}

const PlacedBox& ModelLayout::part(PartId id) const {
  return slot(id.slot)
      .sections[static_cast<std::size_t>(id.section)]
      .parts[static_cast<std::size_t>(id.part)];
}

std::optional<Fragment> ModelLayout::fragment(PartId id, Rank r) const {
  const Slot& s = slot(id.slot);
  if (!rank_set(s.ranks).contains(r)) return std::nullopt;
  const Dims coordinates = coordinates_of(mesh(s.mesh), r);
  Dims shape;
  Index stacked = 0;
  LocalPiece mine;
  for (std::size_t k = 0; k < s.sections.size(); ++k) {
    const LocalPiece h = local_piece(s, s.sections[k], coordinates);
    h.stack_on(shape, s.stack_dim, s.sections[k].extent.size(), k == 0);
    if (static_cast<int>(k) < id.section) stacked += h[s.stack_dim].size();
    if (static_cast<int>(k) == id.section) mine = h;
  }
  const PlacedBox& p = part(id);
  const Dims full_strides = row_major(shape);
  Fragment f{
      p.tensor, id.slot, {}, {stacked * full_strides[s.stack_dim], Dims::filled(p.box.rank(), 0)}};
  std::array<bool, kMaxDims> mapped{};
  std::array<Interval, kMaxDims> box;
  for (int i = 0; i < p.box.rank(); ++i) {
    const int k = p.dims[static_cast<std::size_t>(i)];
    mapped[static_cast<std::size_t>(k)] = true;
    const Interval common = p.within(i, mine[k]);
    if (common.empty()) return std::nullopt;
    box[static_cast<std::size_t>(i)] = common;
    const Index full = p.at[k] + (common.begin() - p.box[i].begin()) * p.step(i);
    f.where.offset += (full - mine[k].begin()) * full_strides[k];
    f.where.strides[i] = full_strides[k] * p.step(i);
  }
  for (int k = 0; k < shape.size(); ++k) {
    if (mapped[static_cast<std::size_t>(k)]) continue;
    if (!contains(mine[k], p.at[k])) return std::nullopt;
    f.where.offset += (p.at[k] - mine[k].begin()) * full_strides[k];
  }
  f.box = Box(std::span<const Interval>(box.data(), static_cast<std::size_t>(p.box.rank())));
  return f;
}

LocalTensor ModelLayout::local(SlotId id, Rank r) const {
  const Slot& s = slot(id);
  LocalTensor out{id, local_shape(id, r), {}};
  for (std::size_t k = 0; k < s.sections.size(); ++k)
    for (std::size_t p = 0; p < s.sections[k].parts.size(); ++p)
      if (auto f = fragment({id, static_cast<std::int32_t>(k), static_cast<std::int32_t>(p)}, r))
        out.fragments.push_back(std::move(*f));
  return out;
}

namespace {

void add(Digest& d, const Mesh& mesh) {
  d.add(mesh.first().value()).add(mesh.axes().size());
  for (const Axis& a : mesh.axes()) d.add(a.name).add(a.size);
}

void add(Digest& d, const DimCut& cut) {
  d.add(cut.num_axes)
      .add(static_cast<int>(cut.rule))
      .add(static_cast<int>(cut.combine))
      .add(cut.granule);
  for (int i = 0; i < cut.num_axes; ++i) d.add(cut.axes[static_cast<std::size_t>(i)]);
  const BlockCut& b = cut.blocks;
  if (b.block == 0) return;
  d.add(b.block).add(b.elements).add(b.window.begin()).add(b.window.end()).add(b.first);
  d.add(int{b.own_grid}).add(b.before).add(b.multiple);
}

void add(Digest& d, const Section& section) {
  d.add(section.extent.size()).add(section.parts.size());
  for (int i = 0; i < section.extent.size(); ++i)
    d.add(section.extent[i]).add(section.cuts[static_cast<std::size_t>(i)].value());
  for (const PlacedBox& p : section.parts) {
    d.add(p.tensor.value());
    for (int i = 0; i < p.box.rank(); ++i)
      d.add(p.box[i].begin()).add(p.box[i].end()).add(p.dims[static_cast<std::size_t>(i)]);
    for (Index i : p.at) d.add(i);
    for (int i = 0; i < p.box.rank(); ++i)
      if (p.step(i) != 1) d.add(-i - 1).add(p.step(i));
  }
}

}  // namespace

std::uint64_t ModelLayout::make_digest() const {
  Digest d;
  d.add(model_->digest());
  for (const bool omitted : omitted_) d.add(int{omitted});
  for (const Mesh& m : meshes_) add(d, m);
  for (const DimCut& c : cuts_) add(d, c);
  for (const RankSet& s : rank_sets_) d.add(s.hash());
  for (const Slot& s : slots_) {
    d.add(s.name).add(static_cast<int>(s.dtype)).add(s.mesh.value()).add(s.ranks.value());
    d.add(s.stack_dim).add(s.sections.size()).add(int{s.merged.bits}).add(static_cast<int>(s.map));
    for (const Section& section : s.sections) add(d, section);
  }
  return d.value();
}

Index local_bytes(const ModelLayout& layout, Rank r) {
  Index total = 0;
  for (SlotId id : layout.slots_of(r))
    total += volume(layout.local_shape(id, r)) * bits(layout.slot(id).dtype) / 8;
  return total;
}

namespace {

/// The boxes that a fragment occupies in its row-major local tensor; local dimensions that it does
/// not span have size 1. More than one if the fragment has gaps.
std::vector<Box> occupied(const Fragment& f, const Dims& shape) {
  const Dims strides = row_major(shape);
  std::array<Interval, kMaxDims> dims;
  Index rest = f.where.offset;
  for (int k = 0; k < shape.size(); ++k) {
    const Index begin = rest / strides[k];
    rest %= strides[k];
    dims[static_cast<std::size_t>(k)] = Interval{begin, begin + 1};
  }
  std::vector<Box> boxes{
      Box(std::span<const Interval>(dims.data(), static_cast<std::size_t>(shape.size())))};
  for (int i = 0; i < f.box.rank(); ++i) {
    const Index size = f.box[i].size(), stride = f.where.strides[i];
    int k = 0;
    while (k < shape.size() && (strides[k] > stride || shape[k] == 1)) ++k;
    if (size == 1 || k == shape.size() || stride % strides[k] != 0) continue;
    const Index step = stride / strides[k], runs = step == 1 ? 1 : size;
    std::vector<Box> all;
    for (const Box& box : boxes)
      for (Index run = 0; run < runs; ++run) {
        const Index begin = box[k].begin() + run * step;
        all.push_back(box.with(k, Interval{begin, begin + (step == 1 ? size : 1)}));
      }
    boxes = std::move(all);
  }
  return boxes;
}

}  // namespace

Result<> check_shard_map(const ModelLayout& layout, Rank r) {
  for (SlotId id : layout.slots_of(r)) {
    const LocalTensor local = layout.local(id, r);
    const Slot& slot = layout.slot(id);
    const auto where = [&] {
      return fmt::format("{}: rank {}: local tensor '{}'", layout.name(), r.value(), slot.name);
    };
    std::vector<Box> boxes;
    Index covered = 0;
    for (const Fragment& f : local.fragments) {
      const std::vector<Box> here = occupied(f, local.shape);
      boxes.insert(boxes.end(), here.begin(), here.end());
      covered += f.box.volume();
      Index elements = 0;
      bool inside = true;
      for (const Box& box : here) {
        elements += box.volume();
        inside = inside && contains(Box::whole(local.shape), box);
      }
      if (elements != f.box.volume() || !inside)
        return fail(Code::invalid_argument,
                    fmt::format("{}: a fragment of '{}' reaches outside shape {}", where(),
                                layout.model()[f.tensor].name, to_string(local.shape)));
    }
    std::sort(boxes.begin(), boxes.end(), before);
    for (std::size_t i = 0; i < boxes.size(); ++i)
      for (std::size_t j = i + 1; j < boxes.size() && boxes[j][0].begin() < boxes[i][0].end(); ++j)
        if (!intersect(boxes[i], boxes[j]).empty())
          return fail(Code::invalid_argument,
                      fmt::format("{}: two fragments overlap at {}", where(),
                                  to_string(intersect(boxes[i], boxes[j]))));
    if (covered != volume(local.shape) && !slot.padded)
      return fail(
          Code::invalid_argument,
          fmt::format(
              "{}: {} of {} elements belong to no canonical tensor and are not declared padding",
              where(), volume(local.shape) - covered, volume(local.shape)));
  }
  return {};
}

Index bytes_of_local(const ModelLayout& layout, Rank r, SlotId slot) {
  return volume(layout.local_shape(slot, r)) * bits(layout.slot(slot).dtype) / 8;
}

}  // namespace reshard
