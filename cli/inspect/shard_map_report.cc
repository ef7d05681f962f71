// SPDX-License-Identifier: Apache-2.0
#include "cli/inspect/shard_map_report.h"

#include <fmt/format.h>

#include <bit>

#include "reshard/base/number_text.h"

namespace reshard::cli {
namespace {

/// Elements of a local tensor that belong to no canonical one.
Index padding_of(const LocalTensor& local) {
  Index covered = 0;
  for (const Fragment& f : local.fragments) covered += f.box.volume();
  return volume(local.shape) - covered;
}

/// The dimension of the module's shape that dimension `dim` of the slot's index space is in.
int module_dim(const Slot& slot, int dim) {
  return dim - std::popcount(slot.merged.bits & ((1U << static_cast<unsigned>(dim)) - 1));
}

Json::Array cuts_json(const ModelLayout& layout, const Slot& slot) {
  Json::Array list;
  const Section& section = slot.sections[0];
  for (int dim = 0; dim < section.extent.size(); ++dim) {
    const CutId id = section.cuts[static_cast<std::size_t>(dim)];
    if (id == CutId(0)) continue;
    const DimCut& how = layout.dim_cut(id);
    const Mesh& mesh = layout.mesh(slot.mesh);
    Json::Array axes;
    for (int i = 0; i < how.num_axes; ++i) {
      const int axis = how.axes[static_cast<std::size_t>(i)];
      axes.emplace_back(mesh.axes()[static_cast<std::size_t>(axis)].name);
    }
    list.emplace_back(Json::Object{{"dim", Json(Index{module_dim(slot, dim)})},
                                   {"over", Json(std::move(axes))},
                                   {"parts", Json(num_parts(how, mesh))}});
  }
  return list;
}

/// The rank's size of each section along the dimension of the module in which they are stacked.
Json stacked_json(const ModelLayout& layout, const Slot& slot, Rank r) {
  const Mesh& mesh = layout.mesh(slot.mesh);
  Dims coordinates;
  for (int i = 0; i < static_cast<int>(mesh.axes().size()); ++i)
    coordinates.push_back(mesh.coordinate(r, i));
  const int dim = module_dim(slot, slot.stack_dim);
  Json::Array sizes;
  for (const Section& section : slot.sections) {
    Dims sizes_here;
    for (int i = 0; i < section.extent.size(); ++i)
      sizes_here.push_back(cut(layout.dim_cut(section.cuts[static_cast<std::size_t>(i)]), mesh,
                               section.extent[i], coordinates)
                               .size());
    sizes.emplace_back(merged_shape(sizes_here, slot.merged)[dim]);
  }
  return Json(Json::Object{{"dim", Json(Index{dim})}, {"sizes", Json(std::move(sizes))}});
}

}  // namespace

Json shape_json(const Dims& shape) {
  Json::Array sizes;
  for (Index size : shape) sizes.emplace_back(size);
  return Json(std::move(sizes));
}

Json::Array shard_map_json(const ModelLayout& layout, const SlotFiles& files, Rank r) {
  Json::Array list;
  for (SlotId id : layout.slots_of(r)) {
    const Slot& slot = layout.slot(id);
    const LocalTensor local = layout.local(id, r);
    const FileTensor tensor_in_file = files.file_tensor(id, r);
    Json::Object tensor = {{"name", Json(tensor_in_file.name)},
                           {"dtype", Json(std::string(name(tensor_in_file.dtype)))}};
    // The dtype whose elements boxes, cuts and offsets below count.
    if (tensor_in_file.dtype != slot.dtype)
      tensor.push_back({"elements", Json(std::string(name(slot.dtype)))});
    if (slot.map != ValueMap::identity)
      tensor.push_back({"map", Json(std::string(name(slot.map)))});
    tensor.push_back({"shape", shape_json(tensor_in_file.shape)});
    tensor.push_back({"padding", Json(padding_of(local))});
    tensor.push_back({"cuts", Json(cuts_json(layout, slot))});
    if (slot.sections.size() > 1) tensor.push_back({"stacked", stacked_json(layout, slot, r)});
    Json::Array fragments;
    for (const Fragment& f : local.fragments)
      fragments.emplace_back(Json::Object{{"tensor", Json(layout.model()[f.tensor].name)},
                                          {"box", Json(to_string(f.box))},
                                          {"offset", Json(f.where.offset)},
                                          {"strides", shape_json(f.where.strides)}});
    tensor.push_back({"fragments", Json(std::move(fragments))});
    list.emplace_back(std::move(tensor));
  }
  return list;
}

std::string shard_map_text(const ModelLayout& layout, const SlotFiles& files, Rank r,
                           const Style& style) {
  Table table(
      {{"local tensor"}, {"dtype"}, {"shape"}, {"padding", Table::Align::right}, {"holds"}});
  for (SlotId id : layout.slots_of(r)) {
    const LocalTensor local = layout.local(id, r);
    const FileTensor tensor_in_file = files.file_tensor(id, r);
    std::vector<std::string> row = {tensor_in_file.name, std::string(name(tensor_in_file.dtype)),
                                    to_string(tensor_in_file.shape), grouped(padding_of(local))};
    if (local.fragments.empty()) table.add({row[0], row[1], row[2], row[3], "nothing"});
    for (const Fragment& f : local.fragments) {
      row.push_back(fmt::format("{} {}", layout.model()[f.tensor].name, to_string(f.box)));
      table.add(std::move(row));
      row = {"", "", "", ""};
    }
  }
  return "\n" +
         style.title(fmt::format("rank {} of {}: {}", r.value(), layout.name(),
                                 human_bytes(local_bytes(layout, r)))) +
         "\n" + table.text(style);
}

}  // namespace reshard::cli
