// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "reshard/model/families.h"
#include "reshard/model/layout_builder.h"
#include "reshard/model/names.h"
#include "reshard/model/quant/files.h"

namespace reshard {
namespace {

/// Adds the copies that the checkpoint stores under a second name, on the shard of the last layers.
void add_aliases(LayoutBuilder& builder, const ModelConfig& config, MeshId mesh, Index shard) {
  const ModelSpec& model = builder.model();
  const RankSetId ranks = builder.ranks_where(mesh, {{0, shard}});
  for (const auto& [alias, name] : HfNames(config).aliases()) {
    const auto id = model.find(name);
    if (!id || model.find(alias)) continue;
    builder.add(Slot{.name = alias,
                     .dtype = model[*id].dtype,
                     .mesh = mesh,
                     .ranks = ranks,
                     .sections = {whole_tensor(model, *id)}});
  }
}

}  // namespace

Result<ModelLayout> hf_layout(const LayoutSpec& spec, const FamilyInput& input) {
  RESHARD_TRY(spec.check_keys({"shards", "offset"}));
  const ModelSpec& model = *input.model;
  const Index shards = RESHARD_TRY(spec.integer("shards", 1));
  const Index offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  LayoutBuilder builder(to_string(spec), input.model);
  const MeshId mesh = builder.add_mesh(
      RESHARD_TRY(Mesh::make({{"shard", shards}}, Rank(static_cast<Rank::rep>(offset)))));
  // A tensor goes to the shard that contains its first byte, when all bytes are cut into equal
  // parts.
  const Index each = std::max<Index>(1, (model.bytes() + shards - 1) / shards);
  Index begin = 0;
  for (Index i = 0; i < model.size(); ++i) {
    const TensorId id(static_cast<TensorId::rep>(i));
    if (input.plain && is_input_scale(model[id].name)) {
      builder.omit(id);
      continue;
    }
    const RankSetId ranks = builder.ranks_where(mesh, {{0, std::min(begin / each, shards - 1)}});
    builder.add(Slot{.name = model[id].name,
                     .dtype = model[id].dtype,
                     .mesh = mesh,
                     .ranks = ranks,
                     .sections = {whole_tensor(model, id)},
                     .merged = model[id].merged});
    begin += model[id].bytes();
  }
  if (input.config != nullptr) add_aliases(builder, *input.config, mesh, shards - 1);
  return std::move(builder).finish();
}

std::string known_families() {
  return "hf, megatron, vllm, sglang, fsdp, dtensor, rules, explicit, dcp, torch_dist";
}

}  // namespace reshard
