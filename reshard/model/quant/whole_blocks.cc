// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/quant/whole_blocks.h"

#include <algorithm>
#include <map>

#include "reshard/model/layout_builder.h"
#include "reshard/model/quant/blocks.h"

namespace reshard {
namespace {

/// Makes slots that each hold one box of a canonical tensor on some ranks.
class BoxLayout {
 public:
  static Result<BoxLayout> make(std::string name, const QuantisedLayout& like) {
    const std::vector<Rank> ranks = like.values->ranks().members();
    const Rank first = ranks.front(), last = ranks.back();
    BoxLayout out(std::move(name), like);
    out.mesh_ = out.builder_.add_mesh(
        RESHARD_TRY(Mesh::make({{"rank", Index{last.value()} - first.value() + 1}}, first)));
    return out;
  }

  void add(TensorId id, const Box& box, RankSet ranks) {
    const StoredForm form = like_.values->form(id);
    const CanonicalTensor& tensor = builder_.model()[id];
    Section section;
    section.extent = box.shape();
    place(section, id, box, Dims::filled(box.rank(), 0));
    builder_.add(Slot{
        .name = tensor.name,
        .dtype = form.dtype,
        .mesh = mesh_,
        .ranks = builder_.add_ranks(std::move(ranks)),
        .sections = {std::move(section)},
        .map = form.map,
        .casts = form.dtype != tensor.dtype,
    });
  }

  Result<std::shared_ptr<const ModelLayout>> finish() && {
    ModelLayout layout = RESHARD_TRY(std::move(builder_).finish());
    return input_last(std::make_shared<const ModelLayout>(std::move(layout)),
                      like_.choice.input_first);
  }

 private:
  BoxLayout(std::string name, const QuantisedLayout& like)
      : like_(like), builder_(std::move(name), like.values->shared_model()) {}

  const QuantisedLayout& like_;
  LayoutBuilder builder_;
  MeshId mesh_;
};

/// Extends a box of a canonical tensor to whole blocks.
Box extended(const QuantisedLayout& layout, const CanonicalTensor& tensor, Box box) {
  const QuantFormat& format = layout.choice.format_of(tensor.name);
  const auto dims = quant::matrix_dims(tensor, layout.choice.input_first);
  // A factor is found from the whole matrix.
  for (const auto& [dim, size] :
       {std::pair(dims.row, format.block_rows), std::pair(dims.col, format.block_cols)}) {
    const Index whole = tensor.shape[dim];
    const Index block = format.tensor_factor ? whole : quant::block_along(size, whole);
    const Interval held = box[dim];
    box = box.with(dim, Interval{held.begin() / block * block,
                                 std::min(whole, (held.end() + block - 1) / block * block)});
  }
  return box;
}

/// Calls f(box, rank) for each part of a tensor that a rank holds.
template <class F>
void for_each_shard(const ModelLayout& layout, TensorId tensor, F&& f) {
  for (const PartId part : layout.parts_of(tensor))
    layout.rank_set(layout.slot(part.slot).ranks).for_each([&](Rank r) {
      if (const auto held = layout.fragment(part, r); held && held->box.volume() > 0)
        f(held->box, r);
    });
}

/// The blocks of a tensor that ranks hold, each with these ranks.
std::vector<std::pair<Box, RankSet>> blocks_held(const QuantisedLayout& layout, TensorId tensor) {
  const CanonicalTensor& canonical = layout.values->model()[tensor];
  std::map<std::vector<Index>, std::pair<Box, RankSet>> held;
  for_each_shard(*layout.values, tensor, [&](const Box& shard, Rank r) {
    const Box box = extended(layout, canonical, shard);
    std::vector<Index> key;
    for (int d = 0; d < box.rank(); ++d) {
      key.push_back(box[d].begin());
      key.push_back(box[d].end());
    }
    auto& entry = held[key];
    entry.first = box;
    entry.second.insert(r);
  });
  std::vector<std::pair<Box, RankSet>> out;
  for (auto& [key, entry] : held) out.push_back(std::move(entry));
  return out;
}

template <class F>
void for_each_chosen(const std::vector<bool>& tensors, F&& f) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]) f(TensorId(static_cast<TensorId::rep>(i)));
}

}  // namespace

Result<std::shared_ptr<const ModelLayout>> whole_blocks(const QuantisedLayout& layout,
                                                        const std::vector<bool>& tensors) {
  auto out =
      RESHARD_TRY(BoxLayout::make("whole blocks of (" + layout.values->name() + ")", layout));
  for_each_chosen(tensors, [&](TensorId id) {
    for (auto& [box, ranks] : blocks_held(layout, id)) out.add(id, box, std::move(ranks));
  });
  return std::move(out).finish();
}

Result<std::shared_ptr<const ModelLayout>> whole_tensors(const QuantisedLayout& layout,
                                                         const std::vector<bool>& tensors) {
  auto out = RESHARD_TRY(BoxLayout::make("between (" + layout.values->name() + ")", layout));
  const std::vector<Rank> ranks = layout.values->ranks().members();
  std::size_t next = 0;
  for_each_chosen(tensors, [&](TensorId id) {
    RankSet owner;
    owner.insert(ranks[next++ % ranks.size()]);
    out.add(id, Box::whole(layout.values->model()[id].shape), std::move(owner));
  });
  return std::move(out).finish();
}

WholeBlockBytes whole_block_bytes(const QuantisedLayout& layout, TensorId tensor) {
  const CanonicalTensor& canonical = layout.values->model()[tensor];
  const QuantFormat& format = layout.choice.format_of(canonical.name);
  const int width = bits(layout.values->form(tensor).dtype);
  const auto dims = quant::matrix_dims(canonical, layout.choice.input_first);
  const Index block = quant::block_along(format.block_rows, canonical.shape[dims.row]) *
                      quant::block_along(format.block_cols, canonical.shape[dims.col]);
  Index halo = 0, stored = 0;
  for (const auto& [box, ranks] : blocks_held(layout, tensor)) halo += box.volume() * ranks.size();
  for_each_shard(*layout.values, tensor, [&](const Box& shard, Rank) { stored += shard.volume(); });
  return {halo * width / 8, volume(canonical.shape) * width / 8 + stored * bits(format.data) / 8 +
                                stored / block * bits(format.scale) / 8};
}

}  // namespace reshard
