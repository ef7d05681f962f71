// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/model/config.h"
#include "reshard/model/families.h"
#include "reshard/model/families/violations.h"
#include "reshard/sharding/cut.h"
#include "reshard/sharding/mesh.h"

namespace reshard::families {

/// The keys that all engines have, with their defaults filled in. What `dp` and `ep` mean differs.
struct EngineSizes {
  Index tp = 1, dp = 1, ep = 1, pp = 1, replicas = 1;
  Index vocab_multiple = 64, redundant = 0, offset = 0;
};
EngineSizes read_engine_sizes(const LayoutSpec& spec, Violations& wrong);

/// True if config.model_type is one of these.
bool has_type(const ModelConfig& config, std::initializer_list<std::string_view> types);

/// What one inference engine decides about a model's tensors: where its ranks are, what they cut,
/// and its names. Filled by a family (vllm, sglang), carried out by EngineLayoutBuilder.
struct EngineDesign {
  Mesh mesh;               ///< of everything but the routed experts; has an axis "pp".
  Mesh expert_mesh;        ///< of the routed experts: the same ranks, an axis "pp" too.
  DimCut heads;            ///< whatever goes with attention heads.
  DimCut dense;            ///< the inner width of dense MLPs.
  DimCut shared;           ///< the inner width of shared experts.
  DimCut embedding, head;  ///< vocabulary rows.
  Index embedding_rows = 0, head_rows = 0;  ///< with padding.
  DimCut expert_outer, expert_inner;        ///< on expert_mesh: whole experts, their inner width.

  std::vector<Index> stages;  ///< decoder layers of each pipeline stage.
  bool embedding_everywhere = false, norm_everywhere = false, head_everywhere = false;
  /// What the last stage has for a tied head where pp > 1: true: an lm_head.weight of its own;
  /// false: the embedding under its own name.
  bool tied_head = false;

  /// The experts in the order in which ranks divide them, each once or more: one list for all
  /// layers, or one per layer with experts.
  std::vector<std::vector<Index>> experts;
  bool up_first = false;    ///< of the halves of w13.
  bool transposed = false;  ///< [E, H, 2I] and [E, I, H].
  bool mtp = false;         ///< the modules for multi-token prediction.
  bool f32_router = false, f32_expert_bias = false;
  /// Biases of attention that its modules have where a checkpoint has them; others are left out.
  bool qkv_bias = true, output_bias = true;
  /// Created in these whatever the model's dtype is; none: in the model's.
  std::optional<DType> sinks_dtype, delta_norm_dtype;
  /// Shared experts that ranks keep behind their routed ones, as experts of their own; 0: beside.
  Index fused_shared = 0;
  /// Modules for multi-token prediction are a model of its own ("model.decoder.") that takes
  /// embedding and head from the main one.
  bool nextn = false;

  /// gpt_oss.py of both engines: ceil(blocks / ranks) blocks of the inner width for each rank,
  /// zeros where they run out.
  void keep_expert_blocks(Index block) {
    if (block > 1 && expert_inner.num_axes > 0) expert_inner.granule = block;
  }

  std::string prefix;             ///< in front of all names: "language_model." or nothing.
  std::string expert_module;      ///< "experts." or "experts.routed_experts."
  std::string fused_qkv_a;        ///< name of MLA's first projections as one.
  std::string sinks_module;       ///< name of attention that has sinks.
  std::string embedding_module;   ///< "embed_tokens"
  std::string w13_bias, w2_bias;  ///< "w13_bias", "w2_bias"
};

/// The order of `num_experts + redundant` physical experts over `ep` ranks, as logical experts.
/// Physical expert p is logical expert p mod num_experts, or what `tables` says (one table, or one
/// per layer with experts). Linear: ranks hold runs of them, the first ranks one more; round_robin:
/// rank r holds r, r + ep, ... Behind its own each rank holds the fused shared experts, which are
/// num_experts, num_experts + 1, ... in the result. Errors: tables of another size or number, with
/// an expert that does not exist or without one that does; ranks that would hold more or fewer
/// where they must not.
struct ExpertPlacement {
  Index num_experts = 0, redundant = 0, ep = 1;
  bool round_robin = false;
  bool even = false;  ///< all ranks must hold as many, as with redundant experts always.
  Index fused_shared = 0;
  Index num_layers = 0;  ///< with experts.
};
Result<std::vector<std::vector<Index>>> expert_orders(const std::string& family,
                                                      const ExpertPlacement& how,
                                                      const ExpertTables* tables);

/// How many layers have experts; with `mtp` those of its modules too.
Index num_expert_layers(const ModelConfig& config, bool mtp);

}  // namespace reshard::families
