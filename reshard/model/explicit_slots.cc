// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/explicit_slots.h"

#include "reshard/base/check.h"
#include "reshard/base/hash.h"

namespace reshard {
namespace {

bool same(const PlacedBox& a, const PlacedBox& b) {
  return a.tensor == b.tensor && a.box == b.box && a.at == b.at && a.dims == b.dims &&
         a.gaps == b.gaps;
}

bool same(const ExplicitTensor& a, const ExplicitTensor& b) {
  if (a.name != b.name || a.dtype != b.dtype || !(a.shape == b.shape) || a.padded != b.padded ||
      !(a.merged == b.merged) || a.map != b.map || a.casts != b.casts ||
      a.parts.size() != b.parts.size())
    return false;
  for (std::size_t i = 0; i < a.parts.size(); ++i)
    if (!same(a.parts[i], b.parts[i])) return false;
  return true;
}

std::uint64_t digest(const ExplicitTensor& t) {
  Digest d;
  d.add(t.name).add(t.parts.size());
  for (Index i : t.shape) d.add(i);
  for (const PlacedBox& p : t.parts) {
    d.add(p.tensor.value());
    for (int i = 0; i < p.box.rank(); ++i) d.add(p.box[i].begin()).add(p.box[i].end());
    for (Index i : p.at) d.add(i);
  }
  return d.value();
}

}  // namespace

void ExplicitTensors::add(const RankSet& ranks, ExplicitTensor tensor) {
  auto& bucket = by_digest_[digest(tensor)];
  for (std::size_t i : bucket) {
    if (!same(entries_[i].tensor, tensor)) continue;
    entries_[i].ranks = entries_[i].ranks | ranks;
    return;
  }
  bucket.push_back(entries_.size());
  entries_.push_back({ranks, std::move(tensor)});
}

std::vector<ExplicitTensors::Entry> ExplicitTensors::take() && {
  by_digest_.clear();
  return std::move(entries_);
}

void ExplicitSlots::add(const RankSet& ranks, ExplicitTensor tensor) {
  add_ranks(ranks);
  tensors_.add(ranks, std::move(tensor));
}

void ExplicitSlots::finish() {
  // Meshes define the ranks of the layout: one per run of consecutive ranks.
  const std::vector<Rank> all = ranks_.members();
  for (std::size_t i = 0, begin = 0; i < all.size(); ++i) {
    if (i + 1 < all.size() && all[i + 1].value() == all[i].value() + 1) continue;
    auto mesh = Mesh::make({{"rank", static_cast<Index>(i + 1 - begin)}}, all[begin]);
    RESHARD_CHECK(mesh.has_value());
    builder_.add_mesh(*std::move(mesh));
    begin = i + 1;
  }
  if (all.empty()) return;
  // No cut uses coordinates, so a mesh without axes serves all slots.
  const MeshId mesh = builder_.add_mesh(*Mesh::make({}, all[0]));
  for (auto& entry : std::move(tensors_).take()) {
    ExplicitTensor& t = entry.tensor;
    Section section{t.shape, {}, std::move(t.parts)};
    std::vector<Section> sections;
    sections.push_back(std::move(section));
    builder_.add(Slot{.name = std::move(t.name),
                      .dtype = t.dtype,
                      .mesh = mesh,
                      .ranks = builder_.add_ranks(std::move(entry.ranks)),
                      .padded = t.padded,
                      .sections = std::move(sections),
                      .merged = t.merged,
                      .map = t.map,
                      .casts = t.casts});
  }
}

}  // namespace reshard
