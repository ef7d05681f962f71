# SPDX-License-Identifier: Apache-2.0
"""What each rank of a vLLM engine holds, sliced from whole tensors.

Rank order: tp runs fastest, then pp, then dp, then replicas. Everything but the experts is cut by
tp alone. Experts are cut by the flattened tp * dp group, or, with expert parallelism, dealt whole
over that same group. Source: vLLM 0.33.0, model by model.
"""

import json
import math
import pathlib
from dataclasses import dataclass

import oracle_vllm_mixer as mixer
from oracle_tensor import Tensor, column_shard, concatenate, pad_rows, round_up, row_shard, stack
from oracle_values import DTYPES, cast
from oracle_vllm_mixer import kv_shard  # noqa: F401

# Models whose modules have these on every pipeline stage, used there or not.
_EVERYWHERE = {
  "embedding": {"qwen3_moe", "mixtral", "gpt_oss", "nemotron_h", "gemma3_text", "qwen3_next"},
  "norm": {"qwen3_moe", "mixtral", "gpt_oss", "nemotron_h", "gemma3_text"},
  "head": {"qwen3_moe", "mixtral", "gpt_oss", "nemotron_h", "qwen3_next"},
}
# Models whose shared experts follow tp alone.
_SHARED_BY_TP = {"glm4_moe"}
# Models whose router computes in fp32 with fp32 weights.
_FP32_ROUTER = {"glm4_moe"}


@dataclass
class VllmSizes:
  """A layout's sizes; ep is 1 (experts cut) or tp * dp (experts whole)."""

  tp: int = 1
  dp: int = 1
  ep: int = 1
  pp: int = 1
  replicas: int = 1
  vocab_multiple: int = 64
  w13: str = "gate_first"
  experts: str = "routed_experts"
  transposed: int = 0
  redundant: int = 0
  expert_map: str = ""
  placement: str = "linear"
  prefix: str = "model"
  mtp: int = 0
  dtype: str = ""

  def __post_init__(self):
    assert self.ep in (1, self.tp * self.dp), "expert parallelism covers every rank or none"

  def world(self):
    return self.tp * self.dp * self.pp * self.replicas


def coordinates(sizes, rank):
  """(pp, tp, dp) of a rank."""
  rest, tp = divmod(rank, sizes.tp)
  rest, pp = divmod(rest, sizes.pp)
  return pp, tp, rest % sizes.dp


def stage_layers(num_layers, pp):
  """Layers of each stage. What does not divide goes to stages from the last but one backwards."""
  counts = [num_layers // pp] * pp
  for place in range(num_layers % pp):
    counts[pp - 2 - place] += 1
  starts = [sum(counts[:stage]) for stage in range(pp)]
  return [list(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]


def vocab_shard(table, tp, index, multiple=64):
  """A run of the vocabulary, padded to a multiple of 64 that tp divides."""
  padded = pad_rows(table, round_up(table.data.shape[0], math.lcm(multiple, tp)))
  return row_shard(padded, index, tp)


def experts_of(num_experts, ep, index, placement="linear"):
  """Consecutive experts; where they do not divide, the first ranks take one more."""
  if placement == "round_robin":
    return range(index, num_experts, ep)
  each, rest = divmod(num_experts, ep)
  start = index * each + min(index, rest)
  return range(start, start + each + (1 if index < rest else 0))


def physical_experts(sizes, num_experts, moe_layer):
  """The logical expert behind each physical one; `moe_layer` counts layers with experts."""
  if sizes.expert_map:
    table = json.loads(pathlib.Path(sizes.expert_map).read_text())
    return table[moe_layer] if isinstance(table[0], list) else table
  return [number % num_experts for number in range(num_experts + sizes.redundant)]


def rank_tensors(model, sizes, rank):
  """Everything rank `rank` holds, by vLLM's names."""
  place = coordinates(sizes, rank)
  pp, tp, _ = place
  first, last = pp == 0, pp == sizes.pp - 1

  def has(part, where):
    return where or model.kind() in _EVERYWHERE[part]

  held = {}
  if has("embedding", first or (last and model.is_tied())):
    name = "embedding" if model.kind() == "gpt_oss" else "embed_tokens"
    held[f"model.{name}.weight"] = _vocabulary(model.embedding(), sizes, tp)
  if has("norm", last):
    held[f"model.{'norm_f' if model.is_hybrid() else 'norm'}.weight"] = model.final_norm()
  if has("head", last) and not model.is_tied():
    held["lm_head.weight"] = _vocabulary(model.find("lm_head.weight"), sizes, tp)
  for index in stage_layers(model.num_layers, sizes.pp)[pp]:
    held |= _layer(model.decoder_layer(index), sizes, place, f"model.layers.{index}.")
  if sizes.mtp and last:
    for number in range(model.num_mtp()):
      held |= _mtp(model, sizes, place, number)
  held = {name: part for name, part in held.items() if part is not None}
  if sizes.prefix == "language_model":
    held = {f"language_model.{name}": part for name, part in held.items()}
  # What modules create without saying a dtype is in the model's.
  if said := sizes.dtype or model.config.get("dtype"):
    held = {
      name: part if _is_made_in_fp32(model, name) else cast(part, DTYPES[said])
      for name, part in held.items()
    }
  return held


def _is_made_in_fp32(model, name):
  """Parameters that their modules create in fp32, whatever the model's dtype."""
  if name.endswith((".mixer.A", ".A_log", ".e_score_correction_bias")):
    return True
  return model.kind() in _FP32_ROUTER and name.endswith(".mlp.gate.weight")


def _vocabulary(table, sizes, tp):
  return vocab_shard(table, sizes.tp, tp, sizes.vocab_multiple)


def _mtp(model, sizes, place, number):
  module, tp = model.mtp_module(number), place[1]
  if model.find("mtp.fc.weight") is not None:
    held = {
      "mtp.fc.weight": row_shard(module.projection, tp, sizes.tp),
      "mtp.pre_fc_norm_embedding.weight": module.embedding_norm,
      "mtp.pre_fc_norm_hidden.weight": module.hidden_norm,
      "mtp.norm.weight": module.final_norm,
    }
    return held | _layer(module.layers[0], sizes, place, f"mtp.layers.{number}.")
  if model.is_hybrid():
    first, last = module.layers[0].prefix, module.layers[-1].prefix
    held = {
      f"{first}eh_proj.weight": row_shard(module.projection, tp, sizes.tp),
      f"{first}enorm.weight": module.embedding_norm,
      f"{first}hnorm.weight": module.hidden_norm,
      f"{last}final_layernorm.weight": module.final_norm,
    }
    for layer in module.layers:
      held |= _layer(layer, sizes, place, layer.prefix)
    return held
  at = f"model.layers.{model.num_layers + number}."
  head = model.embedding() if model.is_tied() else model.find("lm_head.weight")
  held = {
    at + "eh_proj.weight": module.projection,
    at + "enorm.weight": module.embedding_norm,
    at + "hnorm.weight": module.hidden_norm,
    at + "shared_head.norm.weight": module.final_norm,
    at + "shared_head.head.weight": _vocabulary(head, sizes, tp),
    "model.embed_tokens.weight": _vocabulary(model.embedding(), sizes, tp),
  }
  return held | _layer(module.layers[0], sizes, place, f"{at}mtp_block.")


def _layer(layer, sizes, place, prefix):
  parts = {
    name: layer.find(name)
    for name in (
      "input_layernorm.weight",
      "post_attention_layernorm.weight",
      "pre_feedforward_layernorm.weight",
      "post_feedforward_layernorm.weight",
      "norm.weight",
    )
  }
  parts |= mixer.tensors(layer, sizes.tp, place[1])
  if layer.ffn_block() is not None:
    if layer.has_experts():
      parts |= _experts(layer, sizes, place) | _beside_experts(layer, sizes, place)
    else:
      parts |= _mlp(layer.ffn, f"{layer.ffn_block()}.", sizes.tp, place[1])
  return {prefix + name: part for name, part in parts.items()}


def _mlp(find, at, tp, index):
  """An MLP with a gate or without, cut over tp."""
  parts = {}
  for kind in ("weight", "bias"):
    gate, up = (find(f"{name}_proj.{kind}") for name in ("gate", "up"))
    if up is not None and gate is None:
      parts[f"{at}up_proj.{kind}"] = row_shard(up, index, tp)
    elif up is not None:
      halves = [row_shard(gate, index, tp), row_shard(up, index, tp)]
      parts[f"{at}gate_up_proj.{kind}"] = concatenate(halves)
  parts[f"{at}down_proj.weight"] = column_shard(find("down_proj.weight"), index, tp)
  parts[f"{at}down_proj.bias"] = find("down_proj.bias")
  return parts


def _beside_experts(layer, sizes, place):
  block, kind = layer.ffn_block(), layer.model.kind()
  router = cast(layer.router(), "F32") if kind in _FP32_ROUTER else layer.router()
  name = "router" if layer.ffn("router.weight") is not None else "gate"
  parts = {
    f"{block}.{name}.weight": router,
    f"{block}.router.bias": layer.ffn("router.bias"),
    f"{block}.gate.e_score_correction_bias": cast(
      layer.ffn("gate.e_score_correction_bias"), "F32"
    ),
  }
  for own in ("shared_expert_gate.weight", "fc1_latent_proj.weight", "fc2_latent_proj.weight"):
    parts[f"{block}.{own}"] = layer.ffn(own)
  if layer.shared("down_proj.weight") is not None:
    # Tokens are dealt over tp too where experts are parallel over both: then each rank has it all.
    whole = sizes.ep > 1 and sizes.tp > 1 and sizes.dp > 1 and kind not in _SHARED_BY_TP
    one = layer.ffn("shared_expert.down_proj.weight") is not None
    at = f"{block}.{'shared_expert' if one else 'shared_experts'}."
    parts |= _mlp(layer.shared, at, *((1, 0) if whole else (sizes.tp, place[1])))
  return parts


def _moe_layer(layer):
  """How many decoder layers with experts precede this one."""
  model, number = layer.model, layer.prefix.split(".")[-2]
  return sum(model.decoder_layer(index).has_experts() for index in range(int(number)))


def _experts(layer, sizes, place):
  _, tp, dp = place
  group, mine = sizes.tp * sizes.dp, dp * sizes.tp + tp
  physical = physical_experts(sizes, layer.num_experts(), _moe_layer(layer))
  cuts, cut = (1, 0) if sizes.ep > 1 else (group, mine)
  local = experts_of(len(physical), sizes.ep, mine if sizes.ep > 1 else 0, sizes.placement)
  numbers = [physical[number] for number in local]
  inner = "experts.routed_experts" if sizes.experts == "routed_experts" else "experts"
  at = f"{layer.ffn_block()}.{inner}."
  w13 = [_w13(layer, sizes, *layer.expert(number)[:2], cut, cuts) for number in numbers]
  w2 = [column_shard(layer.expert(number)[2], cut, cuts) for number in numbers]
  if sizes.transposed:
    w13, w2 = ([Tensor(t.dtype, t.data.T) for t in weights] for weights in (w13, w2))
  parts = {at + "w13_weight": stack(w13), at + "w2_weight": stack(w2)}
  if layer.expert_bias(0)[2] is not None:
    biases = [layer.expert_bias(number) for number in numbers]
    parts[at + "w13_bias"] = stack([_w13(layer, sizes, *own[:2], cut, cuts) for own in biases])
    # Added once: only the group's first rank has it.
    whole = stack([own[2] for own in biases])
    parts[at + "w2_bias"] = whole if cut == 0 else Tensor(whole.dtype, whole.data * 0)
  return parts


def _w13(layer, sizes, gate, up, cut, cuts):
  """Both halves of one expert; gpt-oss keeps them in turn, others one below the other."""
  if gate is None:
    return row_shard(up, cut, cuts)
  halves = [row_shard(gate, cut, cuts), row_shard(up, cut, cuts)]
  if layer.experts_are_stacked():
    both = stack(halves).data.swapaxes(0, 1)
    return Tensor(gate.dtype, both.reshape(-1, *both.shape[2:]))
  return concatenate(halves[::-1] if sizes.w13 == "up_first" else halves)
