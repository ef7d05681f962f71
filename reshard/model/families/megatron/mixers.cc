// SPDX-License-Identifier: Apache-2.0
// Attention, Mamba-2 and gated delta nets: megatron/core/transformer/attention.py,
// multi_latent_attention.py, ssm/mamba_mixer.py, gated_delta_net.py (megatron-core 0.16.1; the
// fused down-projection and conv1d_weight: Megatron-LM's main branch). A packed parameter has a
// section for each part, so that each part is cut over tp separately.
#include "reshard/model/families/megatron/builder.h"

namespace reshard::families {

/// Per query group: its query rows, head by head; with a gate its gate rows, head by head; then k;
/// then v.
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
      // The checkpoint alternates query and gate rows, head by head.
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

Result<> MegatronBuilder::mamba2(const Layer& l) {
  const Mamba2Config& m = c_.mamba2;
  const std::string front = l.name + "mixer.";
  const Index inner = m.inner(), state = m.groups * m.state;
  RESHARD_TRY(norm(s_.fused_norms ? front + "in_proj.layer_norm_weight" : l.name + "norm.weight",
                   hf_.mixer_norm(l.at)));
  const auto packed = [&](const std::string& name, const std::string& hf,
                          std::initializer_list<Index> parts) -> Result<> {
    const TensorId id = RESHARD_TRY(find(hf_.mixer(l.at, hf)));
    std::vector<Section> list;
    Index at = 0;
    for (Index rows : parts) {
      list.push_back(stacked({{id, {at, at + rows}}}));
      at += rows;
    }
    add(front + name, 0, std::move(list));
    return {};
  };
  RESHARD_TRY(packed("in_proj.weight", "in_proj.weight", {inner, inner, state, state, m.heads}));
  RESHARD_TRY(packed(s_.old_mamba_names ? "conv1d.weight" : "conv1d_weight", "conv1d.weight",
                     {inner, state, state}));
  if (m.conv_bias)
    RESHARD_TRY(packed(s_.old_mamba_names ? "conv1d.bias" : "conv1d_bias", "conv1d.bias",
                       {inner, state, state}));
  for (const char* per_head : {"A_log", "D", "dt_bias"})
    RESHARD_TRY(packed(per_head, per_head, {m.heads}));
  RESHARD_TRY(packed("norm.weight", "norm.weight", {inner}));
  return parallel(front + "out_proj", hf_.mixer(l.at, "out_proj"), 1);
}

/// q, k, v, z, b, a: each for all heads, from the checkpoint's rows per key head.
Result<std::vector<Section>> MegatronBuilder::gated_delta_rows(LayerAt at) {
  const GatedDeltaConfig& g = c_.gated_delta;
  const TensorId qkvz = RESHARD_TRY(find(hf_.mixer(at, "in_proj_qkvz.weight")));
  const TensorId ba = RESHARD_TRY(find(hf_.mixer(at, "in_proj_ba.weight")));
  const Index heads = g.value_heads / g.key_heads, values = heads * g.value_dim;
  std::vector<Section> list;
  const auto part = [&](TensorId id, Index block, Index first, Index rows) {
    std::vector<Rows> taken;
    for (Index head = 0; head < g.key_heads; ++head)
      taken.push_back({id, {head * block + first, head * block + first + rows}});
    list.push_back(stacked(taken));
  };
  const Index block = 2 * g.key_dim + 2 * values;
  part(qkvz, block, 0, g.key_dim);
  part(qkvz, block, g.key_dim, g.key_dim);
  part(qkvz, block, 2 * g.key_dim, values);
  part(qkvz, block, 2 * g.key_dim + values, values);
  part(ba, 2 * heads, 0, heads);
  part(ba, 2 * heads, heads, heads);
  return list;
}

Result<> MegatronBuilder::gated_delta(const Layer& l) {
  const GatedDeltaConfig& g = c_.gated_delta;
  const std::string front = l.name + "self_attention.";
  const Index keys = g.key_heads * g.key_dim, values = g.value_heads * g.value_dim;
  RESHARD_TRY(
      norm(s_.fused_norms ? front + "in_proj.layer_norm_weight" : l.name + "input_layernorm.weight",
           hf_.mixer_norm(l.at)));
  add(front + "in_proj.weight", 0, RESHARD_TRY(gated_delta_rows(l.at)));
  const TensorId conv = RESHARD_TRY(find(hf_.mixer(l.at, "conv1d.weight")));
  std::vector<Section> parts;
  for (const Interval rows :
       {Interval{0, keys}, Interval{keys, 2 * keys}, Interval{2 * keys, 2 * keys + values}})
    parts.push_back(stacked({{conv, rows}}));
  add(front + "conv1d.weight", 0, std::move(parts));
  for (const char* per_head : {"A_log", "dt_bias"}) {
    const TensorId id = RESHARD_TRY(find(hf_.mixer(l.at, per_head)));
    add(front + per_head, 0, sections(whole_tensor(m_, id, {tp_})));
  }
  // The checkpoint stores this norm as it is, even if its other norms are centred.
  RESHARD_TRY(norm(front + "out_norm.weight", hf_.mixer(l.at, "norm.weight"), false));
  return parallel(front + "out_proj", hf_.mixer(l.at, "out_proj"), 1);
}

}  // namespace reshard::families
