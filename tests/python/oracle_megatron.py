# SPDX-License-Identifier: Apache-2.0
"""What each rank of a Megatron-Core GPT model holds, sliced from whole tensors.

Rank order "tp-cp-ep-dp-pp": tp runs fastest, pp slowest. Experts live on a grid of their own over
the same ranks of a pipeline stage, etp fastest, then ep, whatever tp and cp are.
"""

from dataclasses import dataclass

from oracle_tensor import column_shard, concatenate, pad_rows, round_up, row_shard


@dataclass
class MegatronSizes:
  """A layout's sizes; first and last count the layers of the first and last stage.

  etp 0 stands for tp, as Megatron's default does; dp 0 for the smallest one with which the expert
  grid fills a stage.
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

  def __post_init__(self):
    self.etp = self.etp or self.tp
    if self.dp == 0:
      self.dp = 1
      while self.stage_ranks() % (self.etp * self.ep) != 0:
        self.dp += 1
    assert self.stage_ranks() % (self.etp * self.ep) == 0, "the expert grid does not fill a stage"

  def stage_ranks(self):
    return self.tp * self.cp * self.dp

  def world(self):
    return self.stage_ranks() * self.pp


def stage_layers(num_layers, pp, first=None, last=None):
  """The layers (numbered from 0 over the whole model) of each pipeline stage."""
  counts = [None] * pp
  if first is not None:
    counts[0] = first
  if last is not None:
    counts[-1] = last
  open_stages = counts.count(None)
  left = num_layers - sum(count for count in counts if count is not None)
  assert left >= 0 and (left == 0 if open_stages == 0 else left % open_stages == 0), (
    "stages do not divide"
  )
  counts = [left // open_stages if count is None else count for count in counts]
  stages, start = [], 0
  for count in counts:
    stages.append(list(range(start, start + count)))
    start += count
  return stages


def coordinates(sizes, rank):
  """(pp, tp, ep, etp) of a rank."""
  pp, in_stage = divmod(rank, sizes.stage_ranks())
  return pp, in_stage % sizes.tp, in_stage // sizes.etp % sizes.ep, in_stage % sizes.etp


def interleave_qkv(q, k, v, num_groups):
  """Query group after query group: the group's query heads, its key head, its value head."""
  blocks = []
  for group in range(num_groups):
    blocks += [row_shard(part, group, num_groups) for part in (q, k, v)]
  return concatenate(blocks)


def gate_and_up(gate, up, index, count):
  """Both halves are cut, then put together: [gate shard; up shard]."""
  return concatenate([row_shard(gate, index, count), row_shard(up, index, count)])


def vocab_shard(table, sizes, tp):
  """A run of the vocabulary, padded so that every rank's run is equally long."""
  table = pad_rows(table, round_up(table.data.shape[0], sizes.vocab_multiple * sizes.tp))
  return row_shard(table, tp, sizes.tp)


def rank_tensors(model, sizes, rank):
  """Everything rank `rank` holds, by Megatron's local names."""
  pp, tp, ep, etp = coordinates(sizes, rank)
  held = {}
  if pp == 0:
    held["embedding.word_embeddings.weight"] = vocab_shard(
      model.find("model.embed_tokens.weight"), sizes, tp
    )
  for local, index in enumerate(
    stage_layers(model.num_layers, sizes.pp, sizes.first, sizes.last)[pp]
  ):
    parts = _attention(model, sizes, index, tp)
    if model.moe_block(index):
      parts |= _experts(model, sizes, index, ep, etp)
    else:
      parts |= _dense_mlp(model, sizes, index, tp)
    held |= {
      f"decoder.layers.{local}.{name}": part for name, part in parts.items() if part is not None
    }
  if pp == sizes.pp - 1:
    held["decoder.final_layernorm.weight"] = model.find("model.norm.weight")
    if not model.is_tied():
      held["output_layer.weight"] = vocab_shard(model.find("lm_head.weight"), sizes, tp)
    elif sizes.pp > 1:
      held["output_layer.weight"] = vocab_shard(model.find("model.embed_tokens.weight"), sizes, tp)
  return held


def _attention(model, sizes, index, tp):
  parts = {}
  for kind in ("weight", "bias"):
    q, k, v = (model.layer(index, f"self_attn.{name}_proj.{kind}") for name in "qkv")
    if q is not None:
      fused = interleave_qkv(q, k, v, model.num_kv_heads)
      parts[f"self_attention.linear_qkv.{kind}"] = row_shard(fused, tp, sizes.tp)
  norm = (
    "input_layernorm.weight"
    if sizes.norms == "separate"
    else "self_attention.linear_qkv.layer_norm_weight"
  )
  parts[norm] = model.layer(index, "input_layernorm.weight")
  parts["self_attention.q_layernorm.weight"] = model.layer(index, "self_attn.q_norm.weight")
  parts["self_attention.k_layernorm.weight"] = model.layer(index, "self_attn.k_norm.weight")
  out = model.layer(index, "self_attn.o_proj.weight")
  parts["self_attention.linear_proj.weight"] = column_shard(out, tp, sizes.tp)
  parts["self_attention.linear_proj.bias"] = model.layer(index, "self_attn.o_proj.bias")
  return parts


def _dense_mlp(model, sizes, index, tp):
  norm = (
    "pre_mlp_layernorm.weight" if sizes.norms == "separate" else "mlp.linear_fc1.layer_norm_weight"
  )
  parts = {norm: model.layer(index, "post_attention_layernorm.weight")}
  for kind in ("weight", "bias"):
    gate, up = (model.layer(index, f"mlp.{name}_proj.{kind}") for name in ("gate", "up"))
    if gate is not None:
      parts[f"mlp.linear_fc1.{kind}"] = gate_and_up(gate, up, tp, sizes.tp)
  parts["mlp.linear_fc2.weight"] = column_shard(
    model.layer(index, "mlp.down_proj.weight"), tp, sizes.tp
  )
  parts["mlp.linear_fc2.bias"] = model.layer(index, "mlp.down_proj.bias")
  return parts


def _experts(model, sizes, index, ep, etp):
  block = model.moe_block(index)
  parts = {
    "pre_mlp_layernorm.weight": model.layer(index, "post_attention_layernorm.weight"),
    "mlp.router.weight": model.layer(index, f"{block}.gate.weight"),
    "mlp.router.expert_bias": model.layer(index, f"{block}.gate.e_score_correction_bias"),
  }
  each, rest = divmod(model.num_experts(index), sizes.ep)
  assert rest == 0, "experts do not divide by ep"
  for local in range(each):
    gate, up, down = model.expert(index, ep * each + local)
    parts[f"mlp.experts.linear_fc1.weight{local}"] = gate_and_up(gate, up, etp, sizes.etp)
    parts[f"mlp.experts.linear_fc2.weight{local}"] = column_shard(down, etp, sizes.etp)
  return parts
