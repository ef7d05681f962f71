# SPDX-License-Identifier: Apache-2.0
"""What each rank of a Megatron-Core model holds, sliced from whole tensors.

Rank order "tp-cp-ep-dp-pp": tp runs fastest, pp slowest. Experts live on a grid of their own over
the same ranks of a pipeline stage, etp fastest, then ep, whatever tp and cp are.
"""

from dataclasses import dataclass

import oracle_megatron_mixer as mixer
from oracle_megatron_mixer import norm
from oracle_megatron_slices import gate_and_up, interleave_qkv, vocab_shard  # noqa: F401
from oracle_pipeline import stage_layers, virtual_stages  # noqa: F401
from oracle_tensor import column_shard, row_shard
from oracle_values import DTYPES, cast


@dataclass
class MegatronSizes:
  """A layout's sizes; first and last count the layers of the first and last stage.

  etp 0 stands for tp, as Megatron's default does; dp 0 for the smallest one with which the expert
  grid fills a stage; mla_down "" for what the norms' spec does.
  """

  tp: int = 1
  pp: int = 1
  ep: int = 1
  etp: int = 0
  cp: int = 1
  dp: int = 0
  first: int | None = None
  last: int | None = None
  norms: str = "fused"
  vocab_multiple: int = 128
  order: str = "tp-cp-ep-dp-pp"
  vpp: int = 1
  layout: str = ""
  account_embedding: int = 0
  account_loss: int = 0
  experts: str = "grouped"
  mla_down: str = ""
  gamma: str = ""
  mamba_names: str = "new"
  mtp: int = 1
  mtp_names: str = "old"
  dtype: str = ""

  def __post_init__(self):
    self.etp = self.etp or self.tp
    self.mla_down = self.mla_down or ("duplicated" if self.norms == "fused" else "sharded")
    if self.dp == 0:
      self.dp = 1
      while self.stage_ranks() % (self.etp * self.ep) != 0:
        self.dp += 1
    assert self.stage_ranks() % (self.etp * self.ep) == 0, "the expert grid does not fill a stage"

  def stage_ranks(self):
    return self.tp * self.cp * self.dp

  def world(self):
    return self.stage_ranks() * self.pp


def coordinates(sizes, rank):
  """(pp, tp, ep, etp) of a rank."""
  if sizes.order == "tp-cp-ep-pp-dp":
    # dp slowest: a stage is strided over the ranks; the expert grid counts the stage's own ranks.
    block = sizes.tp * sizes.cp
    data, rest = divmod(rank, block * sizes.pp)
    pp, in_block = divmod(rest, block)
    expert_block = sizes.etp * sizes.ep
    in_expert = rank % expert_block
    assert block % expert_block == 0, "the oracle knows this order only for small expert grids"
    return pp, in_block % sizes.tp, in_expert // sizes.etp, in_expert % sizes.etp
  pp, in_stage = divmod(rank, sizes.stage_ranks())
  return pp, in_stage % sizes.tp, in_stage // sizes.etp % sizes.ep, in_stage % sizes.etp


def rank_tensors(model, sizes, rank):
  """Everything rank `rank` holds, by Megatron's local names."""
  place = coordinates(sizes, rank)
  num_mtp = model.num_mtp() if sizes.mtp else 0
  chunks = virtual_stages(sizes, model.num_layers, num_mtp)[place[0]]
  held = {}
  for number, chunk in enumerate(chunks):
    prefix = f"model{number}." if len(chunks) > 1 else ""
    parts = _chunk(model, sizes, chunk, place)
    held |= {prefix + name: part for name, part in parts.items() if part is not None}
  # Megatron keeps the bias of the experts' choice in fp32, whatever the model or checkpoint is.
  biases = {n: cast(t, "F32") for n, t in held.items() if n.endswith("router.expert_bias")}
  if sizes.dtype:
    held = {name: cast(part, DTYPES[sizes.dtype]) for name, part in held.items()}
  return held | biases


def _chunk(model, sizes, chunk, place):
  tp, held = place[1], {}
  if chunk.embedding or chunk.mtp:
    held["embedding.word_embeddings.weight"] = vocab_shard(model.embedding(), sizes, tp)
  for local, index in enumerate(chunk.layers):
    held |= _layer(model.decoder_layer(index), sizes, place, f"decoder.layers.{local}.")
  for local, number in enumerate(chunk.mtp):
    held |= _mtp(model, sizes, place, number, f"mtp.layers.{local}.")
  # With MTP modules the final norm stays behind the last decoder layer, wherever the loss is.
  has_norm = chunk.loss
  if sizes.mtp and model.num_mtp() and not model.is_hybrid():
    has_norm = model.num_layers - 1 in chunk.layers
  if has_norm:
    final = "final_norm" if model.is_hybrid() else "final_layernorm"
    held[f"decoder.{final}.weight"] = norm(model, sizes, model.final_norm())
  if chunk.loss:
    if not model.is_tied():
      held["output_layer.weight"] = vocab_shard(model.find("lm_head.weight"), sizes, tp)
    elif not chunk.embedding:
      held["output_layer.weight"] = vocab_shard(model.embedding(), sizes, tp)
  return held


def _mtp(model, sizes, place, number, prefix):
  module = model.mtp_module(number)
  held = {
    "enorm.weight": norm(model, sizes, module.embedding_norm),
    "hnorm.weight": norm(model, sizes, module.hidden_norm),
    "eh_proj.weight": row_shard(module.projection, place[1], sizes.tp),
    "final_layernorm.weight": norm(model, sizes, module.final_norm),
  }
  if model.is_hybrid():
    for k, layer in enumerate(module.layers):
      held |= _layer(layer, sizes, place, f"mtp_model_layer.layers.{k}.")
  else:
    inner = "mtp_model_layer." if sizes.mtp_names == "new" else "transformer_layer."
    held |= _layer(module.layers[0], sizes, place, inner)
  return {prefix + name: part for name, part in held.items()}


def _layer(layer, sizes, place, prefix):
  _, tp, ep, etp = place
  parts = mixer.tensors(layer, sizes, tp)
  if layer.ffn_block() is not None:
    if layer.has_experts():
      parts |= _experts(layer, sizes, ep, etp) | _beside_experts(layer, sizes, tp)
    else:
      parts |= _dense_mlp(layer, sizes, tp)
  return {prefix + name: part for name, part in parts.items()}


def _fc1(gate, up, index, count):
  """fc1 of an MLP with a gate or without."""
  if up is None:
    return None
  return row_shard(up, index, count) if gate is None else gate_and_up(gate, up, index, count)


def _columns(tensor, index, count):
  return None if tensor is None else column_shard(tensor, index, count)


def _dense_mlp(layer, sizes, tp):
  name = (
    "pre_mlp_layernorm.weight" if sizes.norms == "separate" else "mlp.linear_fc1.layer_norm_weight"
  )
  parts = {name: norm(layer.model, sizes, layer.ffn_norm())}
  for kind in ("weight", "bias"):
    gate, up = (layer.ffn(f"{part}_proj.{kind}") for part in ("gate", "up"))
    parts[f"mlp.linear_fc1.{kind}"] = _fc1(gate, up, tp, sizes.tp)
  parts["mlp.linear_fc2.weight"] = column_shard(layer.ffn("down_proj.weight"), tp, sizes.tp)
  parts["mlp.linear_fc2.bias"] = layer.ffn("down_proj.bias")
  if layer.has_sandwich_norms():
    after = layer.find("post_feedforward_layernorm.weight")
    parts["mlp.linear_fc2.post_layernorm.weight"] = norm(layer.model, sizes, after)
  return parts


def _beside_experts(layer, sizes, tp):
  gate, up, down = (layer.shared(f"{part}_proj.weight") for part in ("gate", "up", "down"))
  return {
    "pre_mlp_layernorm.weight": norm(layer.model, sizes, layer.ffn_norm()),
    "mlp.router.weight": layer.router(),
    "mlp.router.bias": layer.ffn("router.bias"),
    "mlp.router.expert_bias": layer.ffn("gate.e_score_correction_bias"),
    "mlp.shared_experts.linear_fc1.weight": _fc1(gate, up, tp, sizes.tp),
    "mlp.shared_experts.linear_fc2.weight": _columns(down, tp, sizes.tp),
    "mlp.shared_experts.gate_weight": layer.ffn("shared_expert_gate.weight"),
    "mlp.fc1_latent_proj.weight": layer.ffn("fc1_latent_proj.weight"),
    "mlp.fc2_latent_proj.weight": layer.ffn("fc2_latent_proj.weight"),
  }


def _experts(layer, sizes, ep, etp):
  each, rest = divmod(layer.num_experts(), sizes.ep)
  assert rest == 0, "experts do not divide by ep"
  parts = {}
  for local in range(each):
    gate, up, down = layer.expert(ep * each + local)
    gate_bias, up_bias, down_bias = layer.expert_bias(ep * each + local)
    for name, part in (
      ("linear_fc1.weight", _fc1(gate, up, etp, sizes.etp)),
      ("linear_fc1.bias", _fc1(gate_bias, up_bias, etp, sizes.etp)),
      ("linear_fc2.weight", column_shard(down, etp, sizes.etp)),
      ("linear_fc2.bias", down_bias),
    ):
      if sizes.experts == "sequential":
        parts[f"mlp.experts.local_experts.{local}.{name}"] = part
      else:
        parts[f"mlp.experts.{name}{local}"] = part
  return parts
