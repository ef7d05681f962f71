// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reshard/model/config.h"
#include "reshard/model/families/dtensor.h"
#include "reshard/model/families/rules.h"
#include "reshard/model/layout_spec.h"
#include "reshard/model/model_layout.h"

namespace reshard {

/// Which logical expert each physical one is: one list for all layers with experts, or one each.
using ExpertTables = std::vector<std::vector<Index>>;

/// What a family makes a layout of. `config` may be null for `hf`, `fsdp`, `dtensor` and
/// `rules`, which need the tensors alone.
struct FamilyInput {
  std::shared_ptr<const ModelSpec> model;
  const ModelConfig* config = nullptr;
  const ExpertTables* expert_map = nullptr;  ///< what the key expert_map names, read.
  /// Elements of experts' inner width that vllm and sglang keep on one rank, as many of them to
  /// each rank but the last as divide up over all (gpt-oss in MXFP4: 32). 1: the family's own cut.
  Index expert_block = 1;
  bool plain = false;  ///< hf leaves scales of inputs out: the weights beside them are plain.
};

/// The checkpoint itself. Keys: shards (ranks, each with whole tensors, cut by bytes; 1), offset
/// (0).
Result<ModelLayout> hf_layout(const LayoutSpec& spec, const FamilyInput& input);

/// Megatron-Core's GPTModel and MambaModel. Keys: megatron_sizes.h; docs/layouts.md. World: tp * cp
/// * dp * pp; experts: etp * ep * (expert data parallel) over the tp * cp * dp ranks of a stage.
Result<ModelLayout> megatron_layout(const LayoutSpec& spec, const FamilyInput& input);

/// The same layout with those keys said whose default is the model class's own and changes values
/// but no shapes: megatron's gamma for Qwen3-Next. For what is stored beside the values.
LayoutSpec with_explicit_defaults(LayoutSpec spec, const ModelConfig& config);

/// vLLM's modules before any kernel permutes them. Keys: tp, dp (vLLM's own data parallel: experts
/// without ep are cut by tp * dp), ep (1, tp or tp * dp), pp, replicas (independent engines),
/// vocab_multiple (64), redundant (experts), expert_map (a file; input.expert_map has its content),
/// placement (linear | round_robin), w13 (gate_first | up_first), transposed (0), experts
/// (routed_experts | experts), prefix (model | language_model), mtp (0), dtype, offset. World: tp *
/// pp * dp
/// * replicas, tp fastest.
Result<ModelLayout> vllm_layout(const LayoutSpec& spec, const FamilyInput& input);

/// SGLang's modules likewise. Keys: tp (all ranks of a stage), dp (attention data parallel: heads
/// are cut by tp / dp), ep (experts are cut by tp / ep), pp, replicas, vocab_multiple (64),
/// redundant, expert_map, w13, transposed, dp_lm_head (0), dense (tp | whole), shared (tp | whole |
/// fused), prefix, mtp (0), dtype, offset. World: tp * pp * replicas, tp fastest.
Result<ModelLayout> sglang_layout(const LayoutSpec& spec, const FamilyInput& input);

/// Any model, by the rules of a file. Keys: offset, and the sizes of the file's axes. @pre
/// input.model
Result<ModelLayout> rules_layout(const LayoutSpec& spec, const FamilyInput& input,
                                 const RuleSet& rules);

/// torch's fully_shard (FSDP2): each parameter cut by rows over `shard` as torch.chunk does, within
/// what tensor parallelism leaves (the usual plans: projections, embedding and head; the rest is
/// whole over tp). Names are those of transformers' modules. Keys: shard, replicate (HSDP), tp,
/// dtype, transformers (5 | 4), offset. World: replicate * shard * tp, tp fastest.
Result<ModelLayout> fsdp_layout(const LayoutSpec& spec, const FamilyInput& input);

/// Any model as DTensors on device meshes, by the placements of a file. Keys: dtype, offset,
/// transformers (5 | 4; where not given, the one whose experts a rule of the file names first).
Result<ModelLayout> dtensor_layout(const LayoutSpec& spec, const FamilyInput& input,
                                   const DTensorSet& set);

/// What a layout decided by a rule where the notation says nothing, a line each; none for most.
/// @pre the family made a layout of it
Result<std::vector<std::string>> layout_notes(const LayoutSpec& spec, const ModelConfig* config);

/// The names of the families, for messages.
std::string known_families();

}  // namespace reshard
