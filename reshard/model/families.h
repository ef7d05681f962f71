// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/model/layout_spec.h"
#include "reshard/model/model_layout.h"

namespace reshard {

struct ConfigValues;
struct DTensorMesh;
struct DTensorSet;
struct ExplicitLayout;
struct ModelConfig;
struct ModuleTensor;
struct PlacedTensor;
struct RuleSet;

/// The logical expert of each physical one: one list for all layers with experts, or one list per
/// layer.
using ExpertTables = std::vector<std::vector<Index>>;

/// The input of a family. `config` may be null for hf, fsdp, dtensor, rules and explicit, which
/// need only the tensors.
struct FamilyInput {
  std::shared_ptr<const ModelSpec> model;
  const ModelConfig* config = nullptr;
  const ExpertTables* expert_map = nullptr;  ///< the file that the key expert_map names.
  /// The number "expert_block" of cards: the inner width of experts is cut at multiples of this
  /// many elements, the same number of multiples on each rank but the last (32 for gpt-oss in
  /// MXFP4).
  Index expert_block = 1;
  bool plain = false;  ///< hf omits input scales, because the weights are not quantised.
  /// The model_type of the config.json, also of a class that `config` cannot describe; else empty.
  std::string_view model_type = {};
  /// The tensors as hf stores them, all of the model's; null: one by one.
  const std::vector<ModuleTensor>* file_form = nullptr;
  /// rules: what the config.json says; null without one.
  const ConfigValues* values = nullptr;
  /// rules: patterns of tensors that the model may lack; null: none.
  const std::set<std::string>* may_lack = nullptr;
  /// rules: receives those of `may_lack` that name a tensor which is missing; null: not asked for.
  std::set<std::string>* lacked = nullptr;
};

/// The checkpoint itself. Keys: shards (1; ranks, each with whole tensors, about equal bytes),
/// dtype, offset (0).
Result<ModelLayout> hf_layout(const LayoutSpec& spec, const FamilyInput& input);

/// Megatron-Core's GPTModel and MambaModel. Keys: docs/layouts.md and families/megatron/sizes.h.
/// World: tp * cp * dp * pp; experts: etp * ep * (expert data parallel) over the tp * cp * dp ranks
/// of a stage.
Result<ModelLayout> megatron_layout(const LayoutSpec& spec, const FamilyInput& input);

/// The same layout, with explicit values for those keys whose default depends on the model class
/// and changes values but no shapes (gamma of megatron for Qwen3-Next). Used for the notation that
/// is stored beside the values.
LayoutSpec with_explicit_defaults(LayoutSpec spec, const ModelConfig& config);

/// Any model, by the rules of a file or, for vllm and sglang, of a card. Keys: offset, dtype, the
/// sizes of the file's axes, and its keys. Errors begin with the family and name the rule, or all
/// requirements that do not hold. @pre input.model
Result<ModelLayout> rules_layout(const LayoutSpec& spec, const FamilyInput& input,
                                 const RuleSet& rules);

/// torch's fully_shard (FSDP2): each parameter is cut by rows over `shard` as by torch.chunk, after
/// tensor parallelism with the usual plans (projections, embedding and head; other parameters are
/// whole over tp). Names are those of transformers' modules. Keys: shard, replicate (HSDP), tp,
/// dtype, transformers (5 | 4), offset. World: replicate * shard * tp, tp fastest. Buffers are
/// whole. Errors: a tensor that some classes hold as a buffer, of a class that is not known. Also
/// of the family dcp: the tensors of the checkpoint, cut over `shard`.
Result<ModelLayout> fsdp_layout(const LayoutSpec& spec, const FamilyInput& input);

/// Any model as DTensors on device meshes, by the placements of a file. Keys: dtype, offset,
/// transformers (5 | 4; by default the one whose expert names a rule of the file matches first).
Result<ModelLayout> dtensor_layout(const LayoutSpec& spec, const FamilyInput& input,
                                   const DTensorSet& set);

/// The tensors of any model on device meshes: `tensors[i]` places tensor i of the model. Local
/// tensors have the model's names. Errors: their numbers differ; a mesh that is invalid; a tensor
/// (named) whose mesh is not in the list, or whose placements do not fit its mesh or its shape.
Result<ModelLayout> dtensor_layout(std::string name, std::shared_ptr<const ModelSpec> model,
                                   std::span<const DTensorMesh> meshes,
                                   std::span<const PlacedTensor> tensors);

/// The layout of a file, for a model that has its tensors (by name; others of the model are on no
/// rank). Its name is that of the file's layout if `spec` has no file. Keys: offset. Errors: a
/// tensor that the model lacks or has in another shape or dtype (named). @pre the tensors passed
/// check_explicit()
Result<ModelLayout> explicit_layout(const LayoutSpec& spec, const FamilyInput& input,
                                    const ExplicitLayout& layout);

/// Choices that the layout makes where the notation is silent, one line each; usually none. @pre
/// the family accepts the layout
Result<std::vector<std::string>> layout_notes(const LayoutSpec& spec, const ModelConfig* config);

}  // namespace reshard
