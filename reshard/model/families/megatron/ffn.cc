// SPDX-License-Identifier: Apache-2.0
// MLPs and experts: megatron/core/transformer/mlp.py, moe/moe_layer.py, experts.py,
// shared_experts.py (megatron-core 0.16.1); gpt-oss' stacked experts: Megatron-Bridge 0.3.1,
// models/gpt_oss/gpt_oss_bridge.py.
#include "reshard/model/families/megatron/builder.h"

namespace reshard::families {
namespace {

/// One expert of a tensor that stacks all experts on dimension 0, as a section of these extents:
/// canonical dimension i becomes dims[i].
Section expert_slice(TensorId id, Box box, Dims extent, std::array<std::int8_t, kMaxDims> dims,
                     std::array<CutId, kMaxDims> cuts) {
  return {extent, cuts, {PlacedBox{id, box, Dims::filled(extent.size(), 0), dims}}};
}

}  // namespace

Result<> MegatronBuilder::mlp(const Layer& l) {
  const std::string front = l.name + "mlp.";
  RESHARD_TRY(norm(
      s_.fused_norms ? front + "linear_fc1.layer_norm_weight" : l.name + "pre_mlp_layernorm.weight",
      hf_.ffn_norm(l.at)));
  for (const char* kind : {"weight", "bias"}) {
    if (kind[0] == 'b' && !c_.mlp_bias) continue;
    std::vector<Section> pieces;
    for (const char* part : {"gate_proj.", "up_proj."}) {
      if (part[0] == 'g' && !c_.gated_mlp) continue;
      const TensorId id = RESHARD_TRY(find(hf_.ffn(l.at, std::string(part) + kind)));
      pieces.push_back(whole_tensor(m_, id, {tp_}));
    }
    add(front + "linear_fc1." + kind, 0, std::move(pieces));
  }
  RESHARD_TRY(parallel(front + "linear_fc2", hf_.ffn(l.at, "down_proj"), 1, c_.mlp_bias));
  if (!c_.sandwich_norms) return {};
  return norm(front + "linear_fc2.post_layernorm.weight", hf_.ffn_post_norm(l.at));
}

std::vector<Section> MegatronBuilder::gate_up(TensorId gate, TensorId up, Index interleave,
                                              CutId how) const {
  if (interleave == 0) return sections(whole_tensor(m_, gate, {how}), whole_tensor(m_, up, {how}));
  std::vector<Rows> turns;
  const Index rows = m_[gate].shape[0];
  turns.reserve(static_cast<std::size_t>(2 * rows / interleave));
  for (Index at = 0; at < rows; at += interleave)
    for (const TensorId part : {gate, up}) turns.push_back({part, {at, at + interleave}});
  return sections(stacked(turns, how));
}

Result<> MegatronBuilder::experts(const Layer& l) {
  const std::string front = l.name + "mlp.";
  RESHARD_TRY(norm(l.name + "pre_mlp_layernorm.weight", hf_.ffn_norm(l.at)));
  RESHARD_TRY(replicated(front + "router.weight", hf_.router(l.at)));
  if (c_.router_bias) RESHARD_TRY(replicated(front + "router.bias", hf_.router_bias(l.at)));
  if (c_.router_expert_bias) {
    // The router casts this buffer to float32 before each step, regardless of the dtype of the
    // model.
    const TensorId id = RESHARD_TRY(find(hf_.router_expert_bias(l.at)));
    add(front + "router.expert_bias", 0, sections(whole_tensor(m_, id)), {.dtype = DType::f32});
  }
  if (c_.moe_latent_size > 0)
    for (const char* name : {"fc1_latent_proj.weight", "fc2_latent_proj.weight"})
      RESHARD_TRY(replicated(front + name, hf_.ffn(l.at, name)));
  RESHARD_TRY(routed_experts(l));
  return c_.shared_expert_size > 0 ? shared_expert(l) : Result<>{};
}

Result<> MegatronBuilder::routed_experts(const Layer& l) {
  const Index each = c_.num_experts / s_.ep;
  for (Index e = 0; e < c_.num_experts; ++e) {
    const RankSetId ranks = b_.ranks_where(expert_, {{expert_pp_, stage_}, {expert_ep_, e / each}});
    RESHARD_TRY(c_.stacked_experts ? stacked_expert(l, e, ranks) : single_expert(l, e, ranks));
  }
  return {};
}

std::string MegatronBuilder::expert_name(const Layer& l, const char* linear, const char* kind,
                                         Index local) const {
  std::string name;
  name.reserve(96);
  name += l.name;
  name += "mlp.experts.";
  if (s_.sequential_experts) name += "local_experts." + std::to_string(local) + ".";
  name += linear;
  name += '.';
  name += kind;
  if (!s_.sequential_experts) name += std::to_string(local);
  return name;
}

Result<> MegatronBuilder::single_expert(const Layer& l, Index e, RankSetId ranks) {
  const Index local = e % (c_.num_experts / s_.ep);
  const TensorId up = RESHARD_TRY(find(hf_.expert_up(l.at, e)));
  const TensorId down = RESHARD_TRY(find(hf_.expert_down(l.at, e)));
  std::vector<Section> pieces;
  if (c_.gated_mlp) {
    const TensorId gate = RESHARD_TRY(find(hf_.expert_gate(l.at, e)));
    pieces = gate_up(gate, up, s_.glu_interleave, etp_);
  } else {
    pieces = sections(whole_tensor(m_, up, {etp_}));
  }
  add_on(expert_, ranks, expert_name(l, "linear_fc1", "weight", local), 0, std::move(pieces));
  add_on(expert_, ranks, expert_name(l, "linear_fc2", "weight", local), 0,
         sections(whole_tensor(m_, down, {CutId(0), etp_})));
  return {};
}

/// Canonical: gate_up_proj [E, H, I, 2] with bias [E, I, 2], down_proj [E, I, H] with bias [E, H].
/// Megatron, per expert: [2I, H] (gates first), [2I], [H, I], [H].
Result<> MegatronBuilder::stacked_expert(const Layer& l, Index e, RankSetId ranks) {
  const Index local = e % (c_.num_experts / s_.ep), h = c_.hidden_size,
              inner = c_.moe_intermediate_size;
  const auto id = [&](const char* name) { return find(hf_.ffn(l.at, name)); };
  const TensorId gate_up = RESHARD_TRY(id("experts.gate_up_proj"));
  const TensorId gate_up_bias = RESHARD_TRY(id("experts.gate_up_proj_bias"));
  const TensorId down = RESHARD_TRY(id("experts.down_proj"));
  const TensorId down_bias = RESHARD_TRY(id("experts.down_proj_bias"));
  const Interval one{e, e + 1};
  // Without interleaving: a section of gates and one of ups; with it: one section of alternating
  // blocks.
  const Index block = s_.glu_interleave > 0 ? s_.glu_interleave : inner;
  const Index each = s_.glu_interleave > 0 ? 2 * inner : inner;
  std::vector<Section> weights, biases;
  for (Index k = 0; k < 2 * inner / block; ++k) {
    const Index half = k % 2, at = k * block % each;
    const Interval which{half, half + 1}, columns{k / 2 * block, (k / 2 + 1) * block};
    if (at == 0) {
      weights.push_back(Section{{1, each, h, 1}, {CutId(0), etp_}, {}});
      biases.push_back(Section{{1, each, 1}, {CutId(0), etp_}, {}});
    }
    weights.back().parts.push_back(
        PlacedBox{gate_up, Box{one, {0, h}, columns, which}, {0, at, 0, 0}, {0, 2, 1, 3}});
    biases.back().parts.push_back(
        PlacedBox{gate_up_bias, Box{one, columns, which}, {0, at, 0}, {0, 1, 2}});
  }
  const auto put = [&](const char* linear, const char* kind, int stack_dim,
                       std::vector<Section> list, unsigned merged) {
    add_on(expert_, ranks, expert_name(l, linear, kind, local), stack_dim, std::move(list),
           {.merged = {static_cast<std::uint8_t>(merged)}});
  };
  put("linear_fc1", "weight", 1, std::move(weights), 0b101);
  put("linear_fc1", "bias", 1, std::move(biases), 0b11);
  put("linear_fc2", "weight", 0,
      sections(expert_slice(down, Box{one, {0, inner}, {0, h}}, {1, h, inner}, {0, 2, 1},
                            {CutId(0), CutId(0), etp_})),
      0b1);
  put("linear_fc2", "bias", 0,
      sections(expert_slice(down_bias, Box{one, {0, h}}, {1, h}, {0, 1}, {})), 0b1);
  return {};
}

Result<> MegatronBuilder::shared_expert(const Layer& l) {
  const std::string front = l.name + "mlp.shared_experts.";
  const TensorId up = RESHARD_TRY(find(hf_.shared_expert(l.at, "up_proj.weight")));
  std::vector<Section> pieces;
  if (c_.gated_mlp) {
    const TensorId gate = RESHARD_TRY(find(hf_.shared_expert(l.at, "gate_proj.weight")));
    pieces = gate_up(gate, up, s_.shared_glu_interleave, tp_);
  } else {
    pieces = sections(whole_tensor(m_, up, {tp_}));
  }
  add(front + "linear_fc1.weight", 0, std::move(pieces));
  RESHARD_TRY(parallel(front + "linear_fc2", hf_.shared_expert(l.at, "down_proj"), 1));
  if (!c_.shared_expert_gate) return {};
  return replicated(front + "gate_weight", hf_.ffn(l.at, "shared_expert_gate.weight"));
}

}  // namespace reshard::families
