// SPDX-License-Identifier: Apache-2.0
// Attention modules: megatron/core/transformer/attention.py, multi_latent_attention.py
// (megatron-core 0.16.1; the fused down-projection: Megatron-LM's main branch).
#include "reshard/model/families/megatron/builder.h"

namespace reshard {

/// Per query group: its query rows, head by head; with a gate its gate rows, head by head; k; v.
Result<Section> MegatronBuilder::interleaved_qkv(LayerAt at, const std::string& kind) {
  const TensorId q = RESHARD_TRY(find(hf_.mixer(at, "q_proj." + kind)));
  const TensorId k = RESHARD_TRY(find(hf_.mixer(at, "k_proj." + kind)));
  const TensorId v = RESHARD_TRY(find(hf_.mixer(at, "v_proj." + kind)));
  const Index groups = c_.num_key_value_heads, heads = c_.num_attention_heads / groups,
              rows = c_.head_dim;
  std::vector<Rows> list;
  for (Index g = 0; g < groups; ++g) {
    const Index head = g * heads;
    if (c_.attention_gate) {
      // The checkpoint's rows alternate, query and gate of one head after the other.
      for (const Index part : {0, 1})
        for (Index i = head; i < head + heads; ++i)
          list.push_back({q, {(2 * i + part) * rows, (2 * i + part + 1) * rows}});
    } else {
      list.push_back({q, {head * rows, (head + heads) * rows}});
    }
    list.push_back({k, {g * rows, (g + 1) * rows}});
    list.push_back({v, {g * rows, (g + 1) * rows}});
  }
  return stacked(list);
}

Result<> MegatronBuilder::attention(const Layer& l) {
  const std::string front = l.name + "self_attention.";
  RESHARD_TRY(norm(
      s_.fused_norms ? front + "linear_qkv.layer_norm_weight" : l.name + "input_layernorm.weight",
      hf_.mixer_norm(l.at)));
  add(front + "linear_qkv.weight", 0, sections(RESHARD_TRY(interleaved_qkv(l.at, "weight"))));
  if (c_.attention_bias)
    add(front + "linear_qkv.bias", 0, sections(RESHARD_TRY(interleaved_qkv(l.at, "bias"))));
  if (c_.attention_sinks) {
    const TensorId sinks = RESHARD_TRY(find(hf_.mixer(l.at, "sinks")));
    add(front + "core_attention.softmax_offset", 0, sections(whole_tensor(m_, sinks, {tp_})));
  }
  if (c_.qk_norm) {
    RESHARD_TRY(norm(front + "q_layernorm.weight", hf_.mixer(l.at, "q_norm.weight")));
    RESHARD_TRY(norm(front + "k_layernorm.weight", hf_.mixer(l.at, "k_norm.weight")));
  }
  RESHARD_TRY(
      parallel(front + "linear_proj", hf_.mixer(l.at, "o_proj"), 1, c_.attention_output_bias));
  if (!c_.sandwich_norms) return {};
  return norm(front + "linear_proj.post_layernorm.weight", hf_.mixer_post_norm(l.at));
}

/// The down-projections and the norm before them.
Result<> MegatronBuilder::mla_down(const Layer& l, const std::string& front) {
  using Down = MegatronSizes::MlaDown;
  const bool fused = s_.mla_down == Down::fused;
  RESHARD_TRY(norm(fused && s_.fused_norms ? front + "linear_qkv_down_proj.layer_norm_weight"
                                           : l.name + "input_layernorm.weight",
                   hf_.mixer_norm(l.at)));
  const CutId cut = s_.mla_down == Down::duplicated ? CutId(0) : tp_;
  const TensorId kv = RESHARD_TRY(find(hf_.mixer(l.at, "kv_a_proj_with_mqa.weight")));
  if (c_.mla.q_rank > 0) {
    const TensorId q = RESHARD_TRY(find(hf_.mixer(l.at, "q_a_proj.weight")));
    if (fused) {
      add(front + "linear_qkv_down_proj.weight", 0,
          sections(whole_tensor(m_, q, {cut}), whole_tensor(m_, kv, {cut})));
      return {};
    }
    add(front + "linear_q_down_proj.weight", 0, sections(whole_tensor(m_, q, {cut})));
  }
  add(front + "linear_kv_down_proj.weight", 0, sections(whole_tensor(m_, kv, {cut})));
  return {};
}

Result<> MegatronBuilder::mla(const Layer& l) {
  const std::string front = l.name + "self_attention.";
  RESHARD_TRY(mla_down(l, front));
  if (c_.mla.q_rank == 0) {
    RESHARD_TRY(parallel(front + "linear_q_proj", hf_.mixer(l.at, "q_proj"), 0));
  } else {
    RESHARD_TRY(
        norm(front + (s_.fused_norms ? "linear_q_up_proj.layer_norm_weight" : "q_layernorm.weight"),
             hf_.mixer(l.at, "q_a_layernorm.weight")));
    RESHARD_TRY(parallel(front + "linear_q_up_proj", hf_.mixer(l.at, "q_b_proj"), 0));
  }
  RESHARD_TRY(
      norm(front + (s_.fused_norms ? "linear_kv_up_proj.layer_norm_weight" : "kv_layernorm.weight"),
           hf_.mixer(l.at, "kv_a_layernorm.weight")));
  RESHARD_TRY(parallel(front + "linear_kv_up_proj", hf_.mixer(l.at, "kv_b_proj"), 0));
  return parallel(front + "linear_proj", hf_.mixer(l.at, "o_proj"), 1);
}

}  // namespace reshard
