// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "reshard/model/megatron_builder.h"

namespace reshard {
namespace {

using Kinds = std::vector<LayerKind>;

/// The layers that the layout has.
Kinds kinds_of(const MegatronSizes& s, const ModelConfig& c) {
  Kinds kinds = c.layers;
  if (s.mtp && c.num_mtp > 0) kinds.insert(kinds.end(), c.mtp_block.begin(), c.mtp_block.end());
  return kinds;
}

bool has(const Kinds& kinds, Mixer mixer) {
  return std::any_of(kinds.begin(), kinds.end(),
                     [&](const LayerKind& k) { return k.mixer == mixer; });
}

bool has(const Kinds& kinds, Ffn ffn) {
  return std::any_of(kinds.begin(), kinds.end(), [&](const LayerKind& k) { return k.ffn == ffn; });
}

Result<> cuts_evenly(const char* part, Index n, const char* whole, Index size) {
  if (size % n == 0) return {};
  return fail(Code::invalid_argument,
              fmt::format("megatron: {}={} does not divide {}={}", part, n, whole, size));
}

Result<> check_attention(const MegatronSizes& s, const ModelConfig& c) {
  const Index q = (c.attention_gate ? 2 : 1) * c.num_attention_heads;
  RESHARD_TRY(cuts_evenly("tp", s.tp, "num_attention_heads", c.num_attention_heads));
  if (c.num_key_value_heads % s.tp != 0 && s.tp % c.num_key_value_heads != 0)
    return fail(
        Code::invalid_argument,
        fmt::format("megatron: tp={} is neither a multiple nor a divisor of num_key_value_heads={}",
                    s.tp, c.num_key_value_heads));
  return cuts_evenly("tp", s.tp, "the rows of linear_qkv",
                     (q + 2 * c.num_key_value_heads) * c.head_dim);
}

Result<> check_mla(const MegatronSizes& s, const ModelConfig& c) {
  using Down = MegatronSizes::MlaDown;
  RESHARD_TRY(cuts_evenly("tp", s.tp, "num_attention_heads", c.num_attention_heads));
  if (c.mla.bias)
    return fail(Code::unsupported,
                "megatron: its MLA projections have no biases, but the model has (attention_bias)");
  if (s.mla_down == Down::fused && c.mla.q_rank == 0)
    return fail(Code::invalid_argument,
                "megatron: mla_down=fused needs q_lora_rank; without it use duplicated or sharded");
  if (s.mla_down == Down::duplicated) return {};
  if (c.mla.q_rank > 0) RESHARD_TRY(cuts_evenly("tp", s.tp, "q_lora_rank", c.mla.q_rank));
  return cuts_evenly("tp", s.tp, "kv_lora_rank+qk_rope_head_dim", c.mla.kv_rank + c.mla.rope_dim);
}

Result<> check_mixers(const MegatronSizes& s, const ModelConfig& c, const Kinds& kinds) {
  if (has(kinds, Mixer::attention)) RESHARD_TRY(check_attention(s, c));
  if (has(kinds, Mixer::mla)) RESHARD_TRY(check_mla(s, c));
  if (has(kinds, Mixer::mamba2)) {
    if (c.mamba2.bias)
      return fail(
          Code::unsupported,
          "megatron: its Mamba mixers have no biases on in_proj and out_proj, but the model "
          "has (use_bias)");
    RESHARD_TRY(cuts_evenly("tp", s.tp, "mamba_num_heads", c.mamba2.heads));
    RESHARD_TRY(cuts_evenly("tp", s.tp, "n_groups", c.mamba2.groups));
  }
  if (has(kinds, Mixer::gated_delta)) {
    RESHARD_TRY(cuts_evenly("tp", s.tp, "linear_num_key_heads", c.gated_delta.key_heads));
    RESHARD_TRY(cuts_evenly("tp", s.tp, "linear_num_value_heads", c.gated_delta.value_heads));
  }
  return {};
}

/// @param width gates of one rank; 0: there are none.
Result<> interleaves(const char* key, Index rows, Index width, const ModelConfig& c) {
  if (rows == 0) return {};
  if (!c.gated_mlp || width == 0)
    return fail(Code::invalid_argument,
                fmt::format("megatron: {}={}: {} has no such experts with gates", key, rows,
                            c.architecture));
  return cuts_evenly(key, rows, "the gates of an expert on one rank", width);
}

Result<> check_experts(const MegatronSizes& s, const ModelConfig& c) {
  RESHARD_TRY(cuts_evenly("ep", s.ep, "num_experts", c.num_experts));
  RESHARD_TRY(cuts_evenly("etp", s.etp, "moe_intermediate_size", c.moe_intermediate_size));
  RESHARD_TRY(interleaves("glu_interleave", s.glu_interleave, c.moe_intermediate_size / s.etp, c));
  if (c.shared_expert_size > 0)
    RESHARD_TRY(cuts_evenly("tp", s.tp, "the width of the shared experts", c.shared_expert_size));
  return interleaves("shared_glu_interleave", s.shared_glu_interleave, c.shared_expert_size / s.tp,
                     c);
}

}  // namespace

Result<> MegatronBuilder::check(const MegatronSizes& s, const ModelConfig& c) {
  const Kinds kinds = kinds_of(s, c);
  RESHARD_TRY(check_mixers(s, c, kinds));
  if (has(kinds, Ffn::dense))
    RESHARD_TRY(cuts_evenly("tp", s.tp, "intermediate_size", c.intermediate_size));
  if (has(kinds, Ffn::experts)) {
    RESHARD_TRY(check_experts(s, c));
  } else {
    RESHARD_TRY(check_ep("megatron", s.ep, c));
    RESHARD_TRY(interleaves("glu_interleave", s.glu_interleave, 0, c));
    RESHARD_TRY(interleaves("shared_glu_interleave", s.shared_glu_interleave, 0, c));
  }
  // eh_proj is cut on its rows.
  if (s.mtp && c.num_mtp > 0) RESHARD_TRY(cuts_evenly("tp", s.tp, "hidden_size", c.hidden_size));
  return {};
}

}  // namespace reshard
