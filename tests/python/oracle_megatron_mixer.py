# SPDX-License-Identifier: Apache-2.0
"""Attention, MLA, Mamba and gated delta nets of one Megatron layer.

Sources: megatron-core 0.16.1 (attention.py, multi_latent_attention.py, mamba_mixer.py,
gated_delta_net.py, the layer specs) and Megatron-Bridge 0.3.1 (param_mapping.py, the bridges).
"""

from oracle_megatron_slices import (
  delta_in_proj,
  interleave_gated_qkv,
  interleave_qkv,
  packed_shard,
)
from oracle_tensor import column_shard, concatenate, row_shard
from oracle_values import add


def norm(model, sizes, tensor, zero_centered=None):
  """A norm's weight as the layout's gamma wants it; the checkpoint's may be centred on zero."""
  if zero_centered is None:
    zero_centered = model.norms_are_zero_centered()
  if sizes.gamma == "stored":
    return tensor
  # Unless the layout says otherwise, one flag for all norms of a class.
  wanted = sizes.gamma == "zero_centered" if sizes.gamma else model.norms_are_zero_centered()
  return add(tensor, zero_centered - wanted)


def tensors(layer, sizes, tp):
  """The mixer of one layer and the norm before it, by Megatron's local names."""
  kind = layer.mixer_kind()
  if kind is None:
    return {}
  own = {"mamba": _mamba, "delta": _delta, "mla": _mla, "attention": _attention}[kind]
  parts = own(layer, sizes, tp)
  home = {
    "mamba": "mixer.in_proj.layer_norm_weight",
    "delta": "self_attention.in_proj.layer_norm_weight",
    "mla": "input_layernorm.weight",
    "attention": "self_attention.linear_qkv.layer_norm_weight",
  }[kind]
  if sizes.norms == "separate":
    home = "norm.weight" if kind == "mamba" else "input_layernorm.weight"
  elif kind == "mla" and _fuses_down_projections(layer, sizes):
    home = "self_attention.linear_qkv_down_proj.layer_norm_weight"
  parts[home] = norm(layer.model, sizes, layer.mixer_norm())
  return parts


def _attention(layer, sizes, tp):
  model, parts = layer.model, {}
  for kind in ("weight", "bias"):
    q, k, v = (layer.attention(f"{name}_proj.{kind}") for name in "qkv")
    if q is None:
      continue
    if q.data.shape[0] == 2 * model.num_heads * model.head_dim:
      fused = interleave_gated_qkv(q, k, v, model.num_kv_heads, model.head_dim)
    else:
      fused = interleave_qkv(q, k, v, model.num_kv_heads)
    parts[f"self_attention.linear_qkv.{kind}"] = row_shard(fused, tp, sizes.tp)
  for name in ("q", "k"):
    weight = layer.attention(f"{name}_norm.weight")
    parts[f"self_attention.{name}_layernorm.weight"] = norm(model, sizes, weight)
  sinks = layer.attention("sinks")
  if sinks is not None:
    parts["self_attention.core_attention.softmax_offset"] = row_shard(sinks, tp, sizes.tp)
  if layer.has_sandwich_norms():
    after = layer.find("post_attention_layernorm.weight")
    parts["self_attention.linear_proj.post_layernorm.weight"] = norm(model, sizes, after)
  return parts | _out(layer.attention("o_proj.weight"), layer.attention("o_proj.bias"), sizes, tp)


def _out(weight, bias, sizes, tp):
  return {
    "self_attention.linear_proj.weight": column_shard(weight, tp, sizes.tp),
    "self_attention.linear_proj.bias": bias,
  }


def _mla(layer, sizes, tp):
  parts = _out(layer.attention("o_proj.weight"), layer.attention("o_proj.bias"), sizes, tp)
  at = "self_attention."
  q_down = layer.attention("q_a_proj.weight")
  if q_down is None:
    parts[at + "linear_q_proj.weight"] = row_shard(
      layer.attention("q_proj.weight"), tp, sizes.tp
    )
  else:
    parts[at + "linear_q_up_proj.weight"] = row_shard(
      layer.attention("q_b_proj.weight"), tp, sizes.tp
    )
  parts[at + "linear_kv_up_proj.weight"] = row_shard(
    layer.attention("kv_b_proj.weight"), tp, sizes.tp
  )
  for letters in ("q", "kv"):
    home = (
      f"{letters}_layernorm.weight"
      if sizes.norms == "separate"
      else f"linear_{letters}_up_proj.layer_norm_weight"
    )
    parts[at + home] = norm(layer.model, sizes, layer.attention(f"{letters}_a_layernorm.weight"))
  return parts | _mla_down(layer, sizes, tp)


def _fuses_down_projections(layer, sizes):
  return sizes.mla_down == "fused" and layer.attention("q_a_proj.weight") is not None


def _mla_down(layer, sizes, tp):
  """The down-projections: whole on every rank, cut on rows, or both cuts one below the other, as
  FusedMLASelfAttention of later releases keeps them."""
  at, parts = "self_attention.", {}
  for kind in ("weight", "bias"):
    q = layer.attention(f"q_a_proj.{kind}")
    kv = layer.attention(f"kv_a_proj_with_mqa.{kind}")
    if _fuses_down_projections(layer, sizes):
      if q is None:
        continue
      pieces = [row_shard(whole, tp, sizes.tp) for whole in (q, kv)]
      parts[f"{at}linear_qkv_down_proj.{kind}"] = concatenate(pieces)
      continue
    for letters, whole in (("q", q), ("kv", kv)):
      if whole is not None:
        cut = row_shard(whole, tp, sizes.tp) if sizes.mla_down == "sharded" else whole
        parts[f"{at}linear_{letters}_down_proj.{kind}"] = cut
  return parts


def _mamba(layer, sizes, tp):
  size = layer.model.size
  inner = size("mamba_num_heads") * size("mamba_head_dim")
  states, heads = size("n_groups") * size("ssm_state_size"), size("mamba_num_heads")
  conv = "conv1d." if sizes.mamba_names == "old" else "conv1d_"
  parts = {
    "mixer.in_proj.weight": packed_shard(
      layer.find("mixer.in_proj.weight"), [inner, inner, states, states, heads], tp, sizes.tp
    ),
    "mixer.out_proj.weight": column_shard(layer.find("mixer.out_proj.weight"), tp, sizes.tp),
  }
  for kind in ("weight", "bias"):
    packed = layer.find(f"mixer.conv1d.{kind}")
    if packed is not None:
      cut = packed_shard(packed, [inner, states, states], tp, sizes.tp)
      parts[f"mixer.{conv}{kind}"] = cut
  for name in ("A_log", "D", "dt_bias", "norm.weight"):
    parts[f"mixer.{name}"] = row_shard(layer.find(f"mixer.{name}"), tp, sizes.tp)
  return parts


def _delta(layer, sizes, tp):
  names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
  shape = [layer.model.size(f"linear_{name}") for name in names]
  keys, values = shape[0] * shape[2], shape[1] * shape[3]
  find, at = (lambda name: layer.find(f"linear_attn.{name}")), "self_attention."
  return {
    at + "in_proj.weight": delta_in_proj(
      find("in_proj_qkvz.weight"), find("in_proj_ba.weight"), shape, tp, sizes.tp
    ),
    at + "conv1d.weight": packed_shard(
      find("conv1d.weight"), [keys, keys, values], tp, sizes.tp
    ),
    at + "A_log": row_shard(find("A_log"), tp, sizes.tp),
    at + "dt_bias": row_shard(find("dt_bias"), tp, sizes.tp),
    at + "out_norm.weight": norm(layer.model, sizes, find("norm.weight"), zero_centered=False),
    at + "out_proj.weight": column_shard(find("out_proj.weight"), tp, sizes.tp),
  }
