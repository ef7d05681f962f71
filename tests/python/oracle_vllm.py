# SPDX-License-Identifier: Apache-2.0
"""What each rank of a vLLM engine holds, sliced from whole tensors.

Rank order: tp runs fastest, then dp. Everything but the experts is cut by tp alone. Experts are
cut by the flattened tp * dp group, or, with expert parallelism, dealt whole over that same group.
"""

import math
from dataclasses import dataclass

from oracle_tensor import column_shard, concatenate, pad_rows, round_up, row_shard, stack


@dataclass
class VllmSizes:
  """A layout's sizes; ep is 1 (experts cut) or tp * dp (experts whole)."""

  tp: int = 1
  dp: int = 1
  ep: int = 1

  def __post_init__(self):
    assert self.ep in (1, self.world()), "expert parallelism covers every rank or none"

  def world(self):
    return self.tp * self.dp


def kv_shard(tensor, num_kv_heads, tp, index):
  """Equal runs of key or value heads; with more ranks than heads, neighbours hold the same head."""
  if tp <= num_kv_heads:
    return row_shard(tensor, index, tp)
  assert tp % num_kv_heads == 0, "ranks do not divide by key/value heads"
  return row_shard(tensor, index // (tp // num_kv_heads), num_kv_heads)


def vocab_shard(table, tp, index):
  """A run of the vocabulary, padded to a multiple of 64 that tp divides."""
  padded = pad_rows(table, round_up(table.data.shape[0], math.lcm(64, tp)))
  return row_shard(padded, index, tp)


def experts_of(num_experts, ep, index):
  """Consecutive experts; where they do not divide, the first ranks take one more."""
  each, rest = divmod(num_experts, ep)
  start = index * each + min(index, rest)
  return range(start, start + each + (1 if index < rest else 0))


def rank_tensors(model, sizes, rank):
  """Everything rank `rank` holds, by vLLM's names."""
  tp = rank % sizes.tp
  held = {
    "model.embed_tokens.weight": vocab_shard(model.find("model.embed_tokens.weight"), sizes.tp, tp),
    "model.norm.weight": model.find("model.norm.weight"),
  }
  if not model.is_tied():
    held["lm_head.weight"] = vocab_shard(model.find("lm_head.weight"), sizes.tp, tp)
  for index in range(model.num_layers):
    parts = _attention(model, sizes, index, tp)
    if model.moe_block(index):
      parts |= _experts(model, sizes, index, rank)
    else:
      parts |= _dense_mlp(model, sizes, index, tp)
    held |= {
      f"model.layers.{index}.{name}": part for name, part in parts.items() if part is not None
    }
  return held


def _attention(model, sizes, index, tp):
  names = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "self_attn.o_proj.bias",
  )
  parts = {name: model.layer(index, name) for name in names}
  for kind in ("weight", "bias"):
    q, k, v = (model.layer(index, f"self_attn.{name}_proj.{kind}") for name in "qkv")
    if q is not None:
      k, v = (kv_shard(part, model.num_kv_heads, sizes.tp, tp) for part in (k, v))
      parts[f"self_attn.qkv_proj.{kind}"] = concatenate([row_shard(q, tp, sizes.tp), k, v])
  out = model.layer(index, "self_attn.o_proj.weight")
  parts["self_attn.o_proj.weight"] = column_shard(out, tp, sizes.tp)
  return parts


def _dense_mlp(model, sizes, index, tp):
  parts = {"mlp.down_proj.bias": model.layer(index, "mlp.down_proj.bias")}
  for kind in ("weight", "bias"):
    gate, up = (model.layer(index, f"mlp.{name}_proj.{kind}") for name in ("gate", "up"))
    if gate is not None:
      halves = [row_shard(gate, tp, sizes.tp), row_shard(up, tp, sizes.tp)]
      parts[f"mlp.gate_up_proj.{kind}"] = concatenate(halves)
  parts["mlp.down_proj.weight"] = column_shard(
    model.layer(index, "mlp.down_proj.weight"), tp, sizes.tp
  )
  return parts


def _experts(model, sizes, index, rank):
  block = model.moe_block(index)
  if sizes.ep > 1:
    cuts, cut = 1, 0
    experts = experts_of(model.num_experts(index), sizes.ep, rank)
  else:
    cuts, cut = sizes.world(), rank
    experts = range(model.num_experts(index))
  w13, w2 = [], []
  for expert in experts:
    gate, up, down = model.expert(index, expert)
    w13.append(concatenate([row_shard(gate, cut, cuts), row_shard(up, cut, cuts)]))
    w2.append(column_shard(down, cut, cuts))
  bias = f"{block}.gate.e_score_correction_bias"
  return {
    f"{block}.gate.weight": model.layer(index, f"{block}.gate.weight"),
    bias: model.layer(index, bias),
    f"{block}.experts.w13_weight": stack(w13),
    f"{block}.experts.w2_weight": stack(w2),
  }
