// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "reshard/model/layout_spec.h"

namespace reshard::families {

/// The keys of a megatron layout, with defaults filled in.
struct MegatronSizes {
  Index tp = 1, cp = 1, ep = 1, etp = 1, dp = 1, pp = 1;
  Index vpp = 1;              ///< chunks of a pipeline stage (virtual stages).
  Index first = 0, last = 0;  ///< layers of the first and last stage; 0: not given.
  /// Whether embedding and loss count as a layer each when stages are cut; if neither is given, see
  /// pipeline_chunks.
  bool account_embedding = false, account_loss = false, accounts_given = false;
  std::string pipeline;  ///< the key layout; empty: not given.
  Index vocab_multiple = 128, offset = 0;
  std::string order;

  bool fused_norms = true;  ///< norms are inside the following linear layer (Transformer Engine).
  bool sequential_experts = false;  ///< local_experts.K.linear_fc1.weight, not linear_fc1.weightK.
  bool old_mamba_names = false;     ///< conv1d.weight, not conv1d_weight.
  bool new_mtp_names = false;       ///< mtp_model_layer, not transformer_layer.
  bool mtp = true;                  ///< with the layers for multi-token prediction.
  enum class MlaDown { duplicated, sharded, fused } mla_down = MlaDown::duplicated;
  /// The values in norms. usual: as Megatron trains the model class.
  enum class Gamma { usual, stored, plain, zero_centered } gamma = Gamma::usual;
  /// Rows of the blocks in which gates and ups alternate, in linear_fc1 of the routed experts and
  /// of the shared expert; 0: all gates, then all ups.
  Index glu_interleave = 0, shared_glu_interleave = 0;
};

/// Errors, all at once: unknown keys, values out of range, keys that exclude each other, vpp
/// without pp.
Result<MegatronSizes> read_megatron_sizes(const LayoutSpec& spec);

}  // namespace reshard::families
