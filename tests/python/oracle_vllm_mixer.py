# SPDX-License-Identifier: Apache-2.0
"""Attention, MLA, Mamba and gated delta nets of one vLLM layer.

Sources in vLLM 0.33.0: layers/linear.py QKVParallelLinear, models/deepseek_v2.py
DeepseekV2MLAAttention, layers/mamba/mamba_mixer2.py, layers/mamba/gdn/qwen_gdn_linear_attn.py,
models/gpt_oss.py OAIAttention.
"""

import numpy as np

from oracle_tensor import Tensor, column_shard, concatenate, row_shard
from oracle_values import cast, negated_exp


def kv_shard(tensor, num_kv_heads, tp, index):
  """Equal runs of key or value heads; with more ranks than heads, neighbours hold the same head."""
  if tp <= num_kv_heads:
    return row_shard(tensor, index, tp)
  assert tp % num_kv_heads == 0, "ranks do not divide by key/value heads"
  return row_shard(tensor, index // (tp // num_kv_heads), num_kv_heads)


def tensors(layer, tp, index):
  """The mixer of one layer, by vLLM's local names."""
  kind = layer.mixer_kind()
  if kind is None:
    return {}
  return {"mamba": _mamba, "delta": _delta, "mla": _mla, "attention": _attention}[kind](
    layer, tp, index
  )


def _attention(layer, tp, index):
  at = f"{layer.attention_module()}."
  parts = {name: layer.attention(name) for name in ("q_norm.weight", "k_norm.weight")}
  # models/qwen3.py and qwen3_moe.py build o_proj without a bias, qwen3_next.py all four.
  model_type = layer.model.kind()
  if model_type not in ("qwen3", "qwen3_moe", "qwen3_next"):
    parts["o_proj.bias"] = layer.attention("o_proj.bias")
  for kind in ("weight",) if model_type == "qwen3_next" else ("weight", "bias"):
    q, k, v = (layer.attention(f"{name}_proj.{kind}") for name in "qkv")
    if q is not None:
      k, v = (kv_shard(part, layer.model.num_kv_heads, tp, index) for part in (k, v))
      parts[f"qkv_proj.{kind}"] = concatenate([row_shard(q, index, tp), k, v])
  parts["o_proj.weight"] = column_shard(layer.attention("o_proj.weight"), index, tp)
  sinks = layer.attention("sinks")
  if sinks is not None:
    parts["sinks"], at = row_shard(sinks, index, tp), "attn."
  return {at + name: part for name, part in parts.items()}


def _mla(layer, tp, index):
  find, parts = layer.attention, {}
  for name in ("q_a_layernorm.weight", "kv_a_layernorm.weight"):
    parts[name] = find(name)
  for name in ("q_b_proj.weight", "q_proj.weight", "kv_b_proj.weight"):
    if find(name) is not None:
      parts[name] = row_shard(find(name), index, tp)
  # No linear layer of models/deepseek_v2.py has a bias.
  q, kv = find("q_a_proj.weight"), find("kv_a_proj_with_mqa.weight")
  if q is not None:
    parts["fused_qkv_a_proj.weight"] = concatenate([q, kv])
  else:
    parts["kv_a_proj_with_mqa.weight"] = kv
  parts["o_proj.weight"] = column_shard(find("o_proj.weight"), index, tp)
  return {f"self_attn.{name}": part for name, part in parts.items()}


def _packed(tensor, lengths, tp, index, whole=()):
  """Rows packed from parts of `lengths` rows, each cut on its own; parts of `whole` are not cut."""
  assert sum(lengths) == tensor.data.shape[0], (lengths, tensor.data.shape)
  parts = np.split(tensor.data, np.cumsum(lengths)[:-1])
  pieces = [Tensor(tensor.dtype, part) for part in parts]
  return concatenate(
    [piece if k in whole else row_shard(piece, index, tp) for k, piece in enumerate(pieces)]
  )


def _mamba(layer, tp, index):
  size = layer.model.size
  inner = size("mamba_num_heads") * size("mamba_head_dim")
  states, heads, groups = size("ssm_state_size"), size("mamba_num_heads"), size("n_groups")
  assert groups % tp == 0 or groups == 1, "vLLM deals groups evenly, or repeats a single one"
  states *= groups
  one = groups % tp != 0
  find = lambda name: layer.find(f"mixer.{name}")  # noqa: E731
  lengths = [inner, inner, states, states, heads]
  parts = {
    "in_proj.weight": _packed(
      find("in_proj.weight"), lengths, tp, index, (2, 3) if one else ()
    ),
    "out_proj.weight": column_shard(find("out_proj.weight"), index, tp),
    "A": negated_exp(row_shard(find("A_log"), index, tp)),
  }
  for kind in ("weight", "bias"):
    if find(f"conv1d.{kind}") is not None:
      parts[f"conv1d.{kind}"] = _packed(
        find(f"conv1d.{kind}"), [inner, states, states], tp, index, (1, 2) if one else ()
      )
  for name in ("D", "dt_bias", "norm.weight"):
    parts[name] = row_shard(find(name), index, tp)
  return {f"mixer.{name}": part for name, part in parts.items()}


def _delta(layer, tp, index):
  size = layer.model.size
  keys = size("linear_num_key_heads") * size("linear_key_head_dim")
  values = size("linear_num_value_heads") * size("linear_value_head_dim")
  find = lambda name: layer.find(f"linear_attn.{name}")  # noqa: E731
  parts = {
    "in_proj_qkvz.weight": row_shard(find("in_proj_qkvz.weight"), index, tp),
    "in_proj_ba.weight": row_shard(find("in_proj_ba.weight"), index, tp),
    "conv1d.weight": _packed(find("conv1d.weight"), [keys, keys, values], tp, index),
    "A_log": cast(row_shard(find("A_log"), index, tp), "F32"),
    "dt_bias": row_shard(find("dt_bias"), index, tp),
    "norm.weight": find("norm.weight"),
    "out_proj.weight": column_shard(find("out_proj.weight"), index, tp),
  }
  return {f"linear_attn.{name}": part for name, part in parts.items()}
