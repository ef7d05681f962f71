// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reshard/model/config.h"
#include "reshard/model/families.h"
#include "reshard/model/families/error_list.h"
#include "reshard/sharding/cut.h"
#include "reshard/sharding/mesh.h"

namespace reshard::families {

/// The keys that all engines have, with defaults filled in. The meaning of `dp` and `ep` differs.
struct EngineSizes {
  Index tp = 1, dp = 1, ep = 1, pp = 1, replicas = 1;
  Index vocab_multiple = 64, redundant = 0, offset = 0;
};
EngineSizes read_engine_sizes(const LayoutSpec& spec, ErrorList& wrong);

/// True if config.model_type is one of these.
bool has_type(const ModelConfig& config, std::initializer_list<std::string_view> types);

/// The choices of one inference engine for a model: the meshes of its ranks, what they cut, and its
/// names. A family (vllm, sglang) fills it in; EngineLayoutBuilder makes the slots.
struct EngineSharding {
  Mesh mesh;               ///< of everything except the routed experts; has an axis "pp".
  Mesh expert_mesh;        ///< of the routed experts: the same ranks; has an axis "pp".
  DimCut heads;            ///< attention heads, and the heads of other mixers.
  DimCut dense;            ///< the inner width of dense MLPs.
  DimCut shared;           ///< the inner width of shared experts.
  DimCut embedding, head;  ///< vocabulary rows.
  Index embedding_rows = 0, head_rows = 0;  ///< including padding.
  DimCut expert_outer, expert_inner;        ///< on expert_mesh: whole experts, their inner width.

  std::vector<Index> stages;  ///< decoder layers of each pipeline stage.
  bool embedding_everywhere = false, norm_everywhere = false, head_everywhere = false;
  /// The tied head of the last stage if pp > 1. true: an lm_head.weight of its own; false: the
  /// embedding under its own name.
  bool tied_head = false;

  /// The experts in the order in which ranks divide them, each once or more: one list for all
  /// layers, or one per layer with experts.
  std::vector<std::vector<Index>> experts;
  bool up_first = false;    ///< w13 has up before gate.
  bool transposed = false;  ///< [E, H, 2I] and [E, I, H].
  bool mtp = false;         ///< with the modules for multi-token prediction.
  bool f32_router = false, f32_expert_bias = false;
  /// Whether attention modules have these biases; biases that they lack are omitted.
  bool qkv_bias = true, output_bias = true;
  /// Dtypes of parameters that the engine creates in a fixed dtype; none: in the dtype of the
  /// model.
  std::optional<DType> sinks_dtype, delta_norm_dtype;
  /// Shared experts that each rank stores behind its routed ones, as further experts; 0: stored
  /// separately.
  Index fused_shared = 0;
  /// The modules for multi-token prediction are a separate model ("model.decoder.") that uses
  /// embedding and head of the main one.
  bool nextn = false;

  /// gpt_oss.py of both engines: each rank has ceil(blocks / ranks) blocks of the inner width,
  /// padded with zeros.
  void keep_expert_blocks(Index block) {
    if (block > 1 && expert_inner.num_axes > 0) expert_inner.granule = block;
  }

  std::string prefix;         ///< prefix of all names: "language_model." or empty.
  std::string expert_module;  ///< "experts." or "experts.routed_experts."
  std::string fused_qkv_a;    ///< name of MLA's fused down-projections.
  /// The name of attention modules if it is not the checkpoint's; empty: the layer itself has their
  /// parameters.
  std::optional<std::string> attention_module;
  std::string embedding_module;   ///< "embed_tokens"
  std::string w13_bias, w2_bias;  ///< "w13_bias", "w2_bias"
};

/// Places `num_experts + redundant` physical experts on `ep` ranks. Physical expert p is logical
/// expert p mod num_experts, or what the tables say (one table, or one per layer with experts).
/// Linear: ranks hold runs of experts, the first ranks one more; round robin: rank r holds r, r +
/// ep, ... After its own experts each rank holds the fused shared experts, numbered from
/// num_experts.
struct ExpertPlacement {
  Index num_experts = 0, redundant = 0, ep = 1;
  bool round_robin = false;
  bool even = false;  ///< all ranks must hold equally many; always so with redundant experts.
  Index fused_shared = 0;
  Index num_layers = 0;  ///< layers with experts.
};
/// The logical experts in the order of ranks, for each table. Errors: tables of another size or
/// number, with an unknown expert or without a known one; ranks that would hold different numbers
/// of experts where they must not.
Result<std::vector<std::vector<Index>>> expert_orders(const std::string& family,
                                                      const ExpertPlacement& how,
                                                      const ExpertTables* tables);

/// The number of layers with experts; with `mtp` including those of the modules for multi-token
/// prediction.
Index num_expert_layers(const ModelConfig& config, bool mtp);

}  // namespace reshard::families
