// SPDX-License-Identifier: Apache-2.0
#include "reshard/model/reported/metadata_testutil.h"

#include <charconv>
#include <cstdio>

#include "reshard/base/check.h"

namespace reshard {
namespace {

/// The ranks that differ from r on this axis alone, in order.
std::vector<Rank> group_of(const Mesh& mesh, Rank r, int axis) {
  std::vector<Rank> out;
  Dims at;
  for (int i = 0; i < static_cast<int>(mesh.axes().size()); ++i)
    at.push_back(mesh.coordinate(r, i));
  for (Index c = 0; c < mesh.axes()[static_cast<std::size_t>(axis)].size; ++c) {
    at[axis] = c;
    out.push_back(mesh.rank_at(at));
  }
  return out;
}

/// "model.layers.7.mlp..." -> 7; -1 where there is no layer.
Index layer_of(const std::string& canonical) {
  const std::string_view key = "layers.";
  const std::size_t at = canonical.find(key);
  if (at == std::string::npos) return -1;
  Index layer = -1;
  std::from_chars(canonical.data() + at + key.size(), canonical.data() + canonical.size(), layer);
  return layer;
}

class Reporter {
 public:
  Reporter(const ModelLayout& layout, const ModelConfig& config, Rank r)
      : layout_(layout), config_(config), r_(r) {}

  RankMetadata run() {
    RankMetadata out{r_, {}, {}};
    for (SlotId id : layout_.slots_of(r_)) {
      out.parameters.push_back(parameter(id));
      note_layer(id, out.layer_module_prefix_map);
    }
    return out;
  }

 private:
  GroupRanks group(const Mesh& mesh, const char* axis) {
    auto ranks = group_of(mesh, r_, mesh.axis(axis));
    for (const GroupRanks& known : groups_)
      if (*known == ranks) return known;
    groups_.push_back(std::make_shared<const std::vector<Rank>>(std::move(ranks)));
    return groups_.back();
  }

  ParameterMetadata parameter(SlotId id) {
    const Slot& slot = layout_.slot(id);
    const Mesh& mesh = layout_.mesh(slot.mesh);
    ParameterMetadata p;
    p.name = slot.name;
    p.shape = layout_.stored_shape(id, r_);
    p.dtype = slot.dtype;
    p.element_size = bits(slot.dtype) / 8;
    p.owner_rank = r_;
    const Section& section = slot.sections[0];
    for (int d = 0; d < section.extent.size(); ++d) {
      if (section.cuts[static_cast<std::size_t>(d)] == CutId(0)) continue;
      p.is_tp = true;
      p.partition_dim = d;
      p.partition_stride = static_cast<Index>(slot.sections.size());
    }
    p.is_ep = slot.name.find(".experts.") != std::string::npos;
    if (p.is_ep) {
      p.num_experts = config_.num_experts;
      p.expert_parallel_group_ranks = group(mesh, "ep");
    }
    p.tensor_parallel_group_ranks = group(mesh, "tp");
    p.data_parallel_group_ranks = group(mesh, "dp");
    p.pipeline_parallel_group_ranks = group(mesh, "pp");
    return p;
  }

  void note_layer(SlotId id, LayerPrefixMap& map) const {
    const Slot& slot = layout_.slot(id);
    const Index global = layer_of(layout_.model()[slot.sections[0].parts[0].tensor].name);
    const std::string_view key = ".layers.";
    const std::size_t at = slot.name.find(key);
    if (global < 0 || at == std::string::npos) return;
    const std::size_t end = slot.name.find('.', at + key.size());
    add_layer_module(map, std::string_view(slot.name).substr(0, end), global + 1);
  }

  const ModelLayout& layout_;
  const ModelConfig& config_;
  Rank r_;
  std::vector<GroupRanks> groups_;
};

}  // namespace

RankMetadata reported_by(const ModelLayout& layout, const ModelConfig& config, Rank r) {
  return Reporter(layout, config, r).run();
}

GatheredMetadata reported_by(const ModelLayout& layout, const ModelConfig& config) {
  MetadataGatherer gatherer;
  layout.ranks().for_each([&](Rank r) {
    const auto added = gatherer.add(reported_by(layout, config, r));
    if (!added) std::fprintf(stderr, "%s\n", added.error().message.c_str());
    RESHARD_CHECK(added.has_value());
  });
  return std::move(gatherer).finish();
}

}  // namespace reshard
