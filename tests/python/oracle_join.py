# SPDX-License-Identifier: Apache-2.0
"""The oracle's other direction: whole tensors put together again from what all ranks hold.

Only the oracle's own tests use it: a slice that loses, doubles or swaps anything does not return.
"""

import numpy as np

import oracle_megatron
from oracle_tensor import Tensor, concatenate, rows

_EXPERT_PARTS = {
  "mlp": ("gate_proj", "up_proj", "down_proj"),
  "block_sparse_moe": ("w1", "w3", "w2"),
}

# Megatron's local names that only have another name.
_RENAMED = {
  "input_layernorm.weight": "input_layernorm.weight",
  "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
  "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
  "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
  "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
  "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
  "self_attention.linear_proj.bias": "self_attn.o_proj.bias",
  "mlp.linear_fc2.bias": "mlp.down_proj.bias",
  "mlp.router.weight": "{block}.gate.weight",
  "mlp.router.expert_bias": "{block}.gate.e_score_correction_bias",
}


def columns(tensors):
  """All of them side by side."""
  return Tensor(tensors[0].dtype, np.concatenate([t.data for t in tensors], axis=1))


def halves(shards):
  """(gate, up) from every rank's [gate shard; up shard]."""
  middle = shards[0].data.shape[0] // 2
  gate = concatenate([rows(shard, 0, middle) for shard in shards])
  up = concatenate([rows(shard, middle, 2 * middle) for shard in shards])
  return gate, up


def same(tensors):
  """The one tensor that all of these are copies of."""
  assert tensors, "nobody holds it"
  assert all(np.array_equal(tensors[0].data, other.data) for other in tensors[1:]), (
    "replicas differ"
  )
  return tensors[0]


def vocabulary(shards, length):
  """The table without its padding, which must be zero."""
  table = concatenate(shards)
  assert not table.data[length:].any(), "padding is not zero"
  return rows(table, 0, length)


def unravel_qkv(fused, model):
  """{"q": ..., "k": ..., "v": ...} from whole rows in query groups."""
  groups, per_group = model.num_kv_heads, model.num_heads // model.num_kv_heads
  tail = fused.data.shape[1:]
  heads = fused.data.reshape(groups, per_group + 2, model.head_dim, *tail)
  parts = {"q": heads[:, :per_group], "k": heads[:, per_group], "v": heads[:, per_group + 1]}
  return {name: Tensor(fused.dtype, part.reshape(-1, *tail)) for name, part in parts.items()}


class MegatronJoin:
  """Hugging Face tensors from all Megatron ranks; of `model` only names and sizes are used."""

  def __init__(self, model, sizes, ranks):
    self.model, self.sizes = model, sizes
    self.held = [
      (oracle_megatron.coordinates(sizes, rank), held) for rank, held in enumerate(ranks)
    ]

  def over_tp(self, stage, name):
    """One shard per tp rank, the same on all ranks that share it."""
    return [
      same([held[name] for (pp, tp, _, _), held in self.held if (pp, tp) == (stage, index)])
      for index in range(self.sizes.tp)
    ]

  def over_etp(self, stage, ep, name):
    """One shard per expert tp rank, the same on all ranks that share it."""
    return [
      same(
        [held[name] for place, held in self.held if (place[0], *place[2:]) == (stage, ep, index)]
      )
      for index in range(self.sizes.etp)
    ]

  def whole(self):
    """Every tensor, by Hugging Face name."""
    sizes, model = self.sizes, self.model
    vocab = model.find("model.embed_tokens.weight").data.shape[0]
    first, last = 0, sizes.pp - 1
    embedding = vocabulary(self.over_tp(first, "embedding.word_embeddings.weight"), vocab)
    joined = {"model.norm.weight": same(self.over_tp(last, "decoder.final_layernorm.weight"))}
    if not model.is_tied():
      joined["lm_head.weight"] = vocabulary(self.over_tp(last, "output_layer.weight"), vocab)
    elif sizes.pp > 1:
      head = vocabulary(self.over_tp(last, "output_layer.weight"), vocab)
      embedding = same([embedding, head])
    joined["model.embed_tokens.weight"] = embedding
    stages = oracle_megatron.stage_layers(model.num_layers, sizes.pp, sizes.first, sizes.last)
    for stage, layers in enumerate(stages):
      names = {name for place, held in self.held if place[0] == stage for name in held}
      for local, index in enumerate(layers):
        prefix = f"decoder.layers.{local}."
        for name in sorted(name for name in names if name.startswith(prefix)):
          parts = self._layer_part(stage, index, prefix, name[len(prefix) :])
          joined |= {f"model.layers.{index}.{part}": value for part, value in parts.items()}
    return joined

  def _layer_part(self, stage, index, prefix, name):
    block, kind = self.model.moe_block(index), name.rsplit(".", 1)[1]
    if name.startswith("mlp.experts."):
      return self._expert(stage, index, prefix, name)
    shards = self.over_tp(stage, prefix + name)
    if name in _RENAMED:
      return {_RENAMED[name].format(block=block): same(shards)}
    if name.startswith("self_attention.linear_qkv."):
      parts = unravel_qkv(concatenate(shards), self.model)
      return {f"self_attn.{letter}_proj.{kind}": part for letter, part in parts.items()}
    if name.startswith("mlp.linear_fc1."):
      gate, up = halves(shards)
      return {f"mlp.gate_proj.{kind}": gate, f"mlp.up_proj.{kind}": up}
    home = {
      "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
      "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    }
    return {home[name]: columns(shards)}

  def _expert(self, stage, index, prefix, name):
    layer, _, local = name.rpartition("weight")
    block = self.model.moe_block(index)
    gate_name, up_name, down_name = _EXPERT_PARTS[block]
    each = self.model.num_experts(index) // self.sizes.ep
    joined = {}
    for ep in range(self.sizes.ep):
      home = f"{block}.experts.{ep * each + int(local)}."
      shards = self.over_etp(stage, ep, prefix + name)
      if layer == "mlp.experts.linear_fc1.":
        gate, up = halves(shards)
        joined |= {f"{home}{gate_name}.weight": gate, f"{home}{up_name}.weight": up}
      else:
        assert layer == "mlp.experts.linear_fc2.", name
        joined[f"{home}{down_name}.weight"] = columns(shards)
    return joined


class VllmJoin:
  """Hugging Face tensors from all vLLM ranks; of `model` only names and sizes are used."""

  def __init__(self, model, sizes, ranks):
    self.model, self.sizes, self.ranks = model, sizes, ranks

  def whole(self):
    """Every tensor, by Hugging Face name."""
    joined = {}
    for name in self.ranks[0]:
      if ".experts." in name:
        joined |= self._experts(name)
      else:
        joined |= self._cut_by_tp(name)
    return joined

  def _cut_by_tp(self, name):
    tp = self.sizes.tp
    shards = [same([held[name] for held in self.ranks[index::tp]]) for index in range(tp)]
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
      return {name: vocabulary(shards, self.model.find("model.embed_tokens.weight").data.shape[0])}
    if ".qkv_proj." in name:
      parts = self._qkv(shards)
      return {name.replace("qkv_proj", f"{letter}_proj"): part for letter, part in parts.items()}
    if ".gate_up_proj." in name:
      gate, up = halves(shards)
      return {
        name.replace("gate_up_proj", "gate_proj"): gate,
        name.replace("gate_up_proj", "up_proj"): up,
      }
    if name.endswith(("o_proj.weight", "down_proj.weight")):
      return {name: columns(shards)}
    return {name: same(shards)}

  def _qkv(self, shards):
    q_rows = self.model.num_heads // self.sizes.tp * self.model.head_dim
    kv_rows = (shards[0].data.shape[0] - q_rows) // 2
    owners = shards[:: max(1, self.sizes.tp // self.model.num_kv_heads)]
    return {
      "q": concatenate([rows(shard, 0, q_rows) for shard in shards]),
      "k": concatenate([rows(shard, q_rows, q_rows + kv_rows) for shard in owners]),
      "v": concatenate([rows(shard, q_rows + kv_rows, q_rows + 2 * kv_rows) for shard in owners]),
    }

  def _experts(self, name):
    prefix, leaf = name.replace(".routed_experts", "").rsplit(".", 1)
    gate_name, up_name, down_name = _EXPERT_PARTS[prefix.split(".")[-2]]
    singles = [[Tensor(held[name].dtype, one) for one in held[name].data] for held in self.ranks]
    if self.sizes.ep > 1:
      experts = [[one] for rank in singles for one in rank]
    else:
      experts = list(zip(*singles, strict=True))
    joined = {}
    for number, pieces in enumerate(experts):
      if leaf == "w13_weight":
        gate, up = halves(pieces)
        joined[f"{prefix}.{number}.{gate_name}.weight"] = gate
        joined[f"{prefix}.{number}.{up_name}.weight"] = up
      else:
        joined[f"{prefix}.{number}.{down_name}.weight"] = columns(pieces)
    return joined
