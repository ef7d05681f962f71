// SPDX-License-Identifier: Apache-2.0
// torch's fully_shard (FSDP2) over a mesh (replicate, shard, tp), the last fastest. Each parameter
// is cut by rows over `shard` as by torch.chunk; if tensor parallelism cuts rows too, tp comes
// first (in torch: _StridedShard over shard, Shard over tp).
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/base/value_map.h"
#include "reshard/model/families.h"
#include "reshard/model/families/buffers.h"
#include "reshard/model/families/dtensor_slots.h"
#include "reshard/model/families/transformers_modules.h"
#include "reshard/model/names.h"

namespace reshard::families {
namespace {

/// The usual plans of parallelize_module for the parameters of a module.
enum class Style { colwise, rowwise, none };

struct Module {
  std::string_view name;
  Style style;
};

// Embeddings under RowwiseParallel and heads under ColwiseParallel are both cut by vocabulary rows.
constexpr std::array kModules = {
    Module{"q_proj", Style::colwise},    Module{"k_proj", Style::colwise},
    Module{"v_proj", Style::colwise},    Module{"q_b_proj", Style::colwise},
    Module{"kv_b_proj", Style::colwise}, Module{"gate_proj", Style::colwise},
    Module{"up_proj", Style::colwise},   Module{"w1", Style::colwise},
    Module{"w3", Style::colwise},        Module{"embed_tokens", Style::colwise},
    Module{"lm_head", Style::colwise},   Module{"o_proj", Style::rowwise},
    Module{"down_proj", Style::rowwise}, Module{"w2", Style::rowwise},
};

/// "model.layers.0.mlp.up_proj.weight" -> module "up_proj", parameter "weight".
Style style_of(std::string_view tensor) {
  const std::size_t dot = tensor.rfind('.');
  if (dot == std::string_view::npos) return Style::none;
  std::string_view module = tensor.substr(0, dot);
  const std::string_view parameter = tensor.substr(dot + 1);
  module.remove_prefix(module.rfind('.') == std::string_view::npos ? 0 : module.rfind('.') + 1);
  if (parameter != "weight" && parameter != "bias") return Style::none;
  for (const Module& m : kModules)
    if (m.name == module)
      return m.style == Style::rowwise && parameter == "bias" ? Style::none : m.style;
  return Style::none;
}

enum MeshDim : int { kReplicate, kShard, kTp };

/// Stacked experts are cut by experts; the usual plans of parallelize_module do not cover them.
TensorShards shards_of_stack() {
  TensorShards shards;
  shards[0].push_back({kShard, 1});
  return shards;
}

/// A checkpoint of pieces may cut what is a buffer in the modules. A scalar can only be a buffer:
/// fully_shard takes no parameters without dimensions.
TensorShards shards_of(const CanonicalTensor& t, Held held) {
  TensorShards shards;
  if (held == Held::buffer || held == Held::f32_buffer || t.shape.size() == 0) return shards;
  const Style style = style_of(t.name);
  if (style == Style::colwise) shards[0].push_back({kTp, 1});
  if (style == Style::rowwise && t.stored_shape().size() > 1) shards[1].push_back({kTp, 1});
  shards[0].push_back({kShard, 1});
  return shards;
}

tl::unexpected<Error> not_known(const std::string& tensor, std::string_view type) {
  return fail(
      Code::unsupported,
      fmt::format(
          "fsdp: tensor '{}' is a buffer in some classes, which fully_shard leaves "
          "whole, and a parameter in others; which it is {} is not known; say so in "
          "dtensor:FILE",
          tensor,
          type.empty() ? "without a config.json" : fmt::format("with model_type \"{}\"", type)));
}

using Aliases = std::vector<std::string>;

/// The second names under which the model's checkpoint stores a tensor.
Aliases aliases_of(const std::string& tensor, const FamilyInput& input) {
  Aliases out;
  if (input.config == nullptr) return out;
  for (const auto& [alias, name] : HfNames(*input.config).aliases())
    if (name == tensor && !input.model->find(alias)) out.push_back(alias);
  return out;
}

}  // namespace

}  // namespace reshard::families

namespace reshard {

Result<ModelLayout> fsdp_layout(const LayoutSpec& spec, const FamilyInput& input) {
  using namespace families;
  const bool checkpoint = spec.family == "dcp";
  RESHARD_TRY(checkpoint ? spec.check_keys({"shard", "dtype", "format"})
                         : spec.check_keys(
                               {"shard", "replicate", "tp", "dtype", "transformers", "offset"}));
  if (checkpoint) RESHARD_TRY(spec.one_of("format", {"torch", "safetensors"}));
  const Index tp = RESHARD_TRY(spec.integer("tp", 1));
  const Index shard = RESHARD_TRY(spec.integer("shard", 1));
  const Index replicate = RESHARD_TRY(spec.integer("replicate", 1));
  const Index offset = RESHARD_TRY(spec.integer("offset", 0, 0));
  const auto dtype = RESHARD_TRY(spec.dtype());
  const auto release = RESHARD_TRY(transformers_release(spec));
  LayoutBuilder builder(to_string(spec), input.model);
  DTensorSlots slots(builder);
  DTensorMesh mesh{"fsdp", {replicate, shard, tp}, {}, {"replicate", "shard", "tp"}};
  if (replicate * shard > kMaxRanks || replicate * shard * tp > kMaxRanks)
    return fail(Code::invalid_argument,
                fmt::format("fsdp: replicate*shard*tp={}*{}*{} is more than {} ranks", replicate,
                            shard, tp, kMaxRanks));
  for (Index r = 0; r < replicate * shard * tp; ++r)
    mesh.ranks.emplace_back(static_cast<Rank::rep>(r));
  const std::size_t on = RESHARD_TRY(slots.add_mesh(mesh, offset));
  const ModelSpec& model = *input.model;
  const std::string_view type = input.config ? input.config->model_type : input.model_type;
  for (const ModuleTensor& t : transformers_modules(
           model, input.config,
           checkpoint ? kCheckpointNames : release.value_or(kNewestTransformers))) {
    const CanonicalTensor& first = model[t.tensor];
    const Held held = held_as(type, first.name);
    if (held == Held::unknown && !checkpoint) return not_known(first.name, type);
    const auto stored = stored_dtype(first, held, dtype);
    if (t.stack) {
      RESHARD_TRY(slots.add_stack(on, *t.stack, t.name, shards_of_stack(), stored));
      continue;
    }
    const TensorShards shards = shards_of(first, held);
    RESHARD_TRY(slots.add(on, t.tensor, t.name, shards, stored));
    // Of a checkpoint, also the copies that it stores under a second name, as `hf` does.
    for (const std::string& alias : checkpoint ? aliases_of(first.name, input) : Aliases())
      RESHARD_TRY(slots.add(on, t.tensor, alias, shards, stored));
  }
  slots.finish();
  return std::move(builder).finish();
}

}  // namespace reshard
