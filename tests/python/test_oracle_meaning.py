# SPDX-License-Identifier: Apache-2.0
"""The oracle's slices against what they are for: ranks that compute as the frameworks do, together,
compute what the whole model computes. Weights are small whole numbers, so sums are exact."""

import numpy as np
import pytest

from oracle import expected_ranks, parse
from oracle_megatron import coordinates
from oracle_model import Model
from oracle_tensor import Tensor
from oracle_vllm import experts_of

HIDDEN, INTERMEDIATE, EXPERTS, VOCAB, TOKENS = 10, 24, 6, 45, 5


def make_model(heads, kv_heads, head_dim=4, moe=False, seed=0):
  random = np.random.default_rng(seed)
  shapes = {
    "self_attn.q_proj": (heads * head_dim, HIDDEN),
    "self_attn.k_proj": (kv_heads * head_dim, HIDDEN),
    "self_attn.v_proj": (kv_heads * head_dim, HIDDEN),
    "self_attn.o_proj": (HIDDEN, heads * head_dim),
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
  }
  blocks = [f"mlp.experts.{expert}" for expert in range(EXPERTS)] if moe else ["mlp"]
  for block in blocks:
    shapes[f"{block}.gate_proj"] = shapes[f"{block}.up_proj"] = (INTERMEDIATE, HIDDEN)
    shapes[f"{block}.down_proj"] = (HIDDEN, INTERMEDIATE)
  if moe:
    shapes["mlp.gate"] = (EXPERTS, HIDDEN)
  shapes = {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()}
  shapes |= {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
  shapes |= {"model.norm.weight": (HIDDEN,)}
  tensors = {
    name: Tensor("F64", random.integers(-4, 5, shape).astype(np.float64))
    for name, shape in shapes.items()
  }
  return Model(tensors, 1, heads, kv_heads, head_dim)


def weight(model, name):
  return model.layer(0, f"{name}.weight").data


def inputs():
  return np.random.default_rng(1).integers(-4, 5, (TOKENS, HIDDEN)).astype(np.float64)


def mix(q, k, v):
  """Stands in for attention: any function of a query head and its own key and value head."""
  return q * k + 2 * v


def whole_attention(model, x):
  def split(name):
    return (x @ weight(model, f"self_attn.{name}_proj").T).reshape(TOKENS, -1, model.head_dim)

  repeats = model.num_heads // model.num_kv_heads
  k, v = (np.repeat(split(name), repeats, axis=1) for name in "kv")
  return mix(split("q"), k, v).reshape(TOKENS, -1) @ weight(model, "self_attn.o_proj").T


def whole_mlp(model, x, block="mlp"):
  gate, up = (x @ weight(model, f"{block}.{name}_proj").T for name in ("gate", "up"))
  return (gate * gate * up) @ weight(model, f"{block}.down_proj").T


def whole_moe(model, x):
  route = x @ weight(model, "mlp.gate").T
  parts = [route[:, [e]] * whole_mlp(model, x, f"mlp.experts.{e}") for e in range(EXPERTS)]
  return sum(parts)


def local_mlp(x, fused, down):
  gate, up = np.split(x @ fused.T, 2, axis=1)
  return (gate * gate * up) @ down.T


HEADS = [(6, 6, 2), (6, 3, 3), (12, 2, 2), (12, 2, 4), (8, 2, 8), (12, 3, 6), (4, 1, 4)]


@pytest.mark.parametrize("heads, kv_heads, tp", HEADS)
def test_megatron_attention(heads, kv_heads, tp):
  model, x = make_model(heads, kv_heads), inputs()
  ranks = expected_ranks(model, f"megatron:tp={tp}")
  layer = "decoder.layers.0.self_attention."
  mixed = [x @ held[f"{layer}linear_qkv.weight"].data.T for held in ranks]
  total = np.zeros((TOKENS, HIDDEN))
  for rank, held in enumerate(ranks):
    if kv_heads < tp:
      # All ranks' outputs are gathered; a rank picks its group's run, later its own queries.
      gathered = np.split(np.concatenate(mixed, axis=1), kv_heads, axis=1)
      groups, run = 1, gathered[rank // (tp // kv_heads)]
    else:
      groups, run = kv_heads // tp, mixed[rank]
    run = run.reshape(TOKENS, groups, heads // kv_heads + 2, model.head_dim)
    q, k, v = run[:, :, :-2], run[:, :, -2:-1], run[:, :, -1:]
    out = mix(q, k, v).reshape(TOKENS, -1, model.head_dim)
    if kv_heads < tp:
      share = heads // tp
      start = rank % (tp // kv_heads) * share
      out = out[:, start : start + share]
    total += out.reshape(TOKENS, -1) @ held[f"{layer}linear_proj.weight"].data.T
  np.testing.assert_array_equal(total, whole_attention(model, x))


@pytest.mark.parametrize("heads, kv_heads, tp", HEADS)
def test_vllm_attention(heads, kv_heads, tp):
  model, x = make_model(heads, kv_heads), inputs()
  total = np.zeros((TOKENS, HIDDEN))
  local_q, local_kv = heads // tp, max(1, kv_heads // tp)
  for held in expected_ranks(model, f"vllm:tp={tp}"):
    out = x @ held["model.layers.0.self_attn.qkv_proj.weight"].data.T
    out = out.reshape(TOKENS, -1, model.head_dim)
    q, k, v = np.split(out, [local_q, local_q + local_kv], axis=1)
    k, v = (np.repeat(part, local_q // local_kv, axis=1) for part in (k, v))
    proj = held["model.layers.0.self_attn.o_proj.weight"].data
    total += mix(q, k, v).reshape(TOKENS, -1) @ proj.T
  np.testing.assert_array_equal(total, whole_attention(model, x))


@pytest.mark.parametrize(
  "layout", ["megatron:tp=3", "megatron:tp=6", "vllm:tp=3", "vllm:tp=2,dp=2"]
)
def test_dense_mlp(layout):
  model, x = make_model(6, 6), inputs()
  names = {
    "megatron": (
      "decoder.layers.0.mlp.linear_fc1.weight",
      "decoder.layers.0.mlp.linear_fc2.weight",
    ),
    "vllm": ("model.layers.0.mlp.gate_up_proj.weight", "model.layers.0.mlp.down_proj.weight"),
  }[layout.split(":")[0]]
  _, sizes = parse(layout)
  ranks = expected_ranks(model, layout)[: sizes.tp]
  total = sum(local_mlp(x, *(held[name].data for name in names)) for held in ranks)
  np.testing.assert_array_equal(total, whole_mlp(model, x))


@pytest.mark.parametrize(
  "layout",
  ["megatron:tp=2,ep=3", "megatron:ep=2,etp=2", "megatron:tp=2,ep=6,etp=2", "megatron:cp=2,ep=2"],
)
def test_megatron_experts(layout):
  model, x = make_model(6, 6, moe=True), inputs()
  _, sizes = parse(layout)
  layer, each = "decoder.layers.0.mlp.", EXPERTS // sizes.ep
  seen, total = set(), np.zeros((TOKENS, HIDDEN))
  for rank, held in enumerate(expected_ranks(model, layout)):
    _, _, ep, etp = coordinates(sizes, rank)
    if (ep, etp) in seen:
      continue
    seen.add((ep, etp))
    route = x @ held[f"{layer}router.weight"].data.T
    for local in range(each):
      fused = held[f"{layer}experts.linear_fc1.weight{local}"].data
      down = held[f"{layer}experts.linear_fc2.weight{local}"].data
      total += route[:, [ep * each + local]] * local_mlp(x, fused, down)
  assert len(seen) == sizes.ep * sizes.etp
  np.testing.assert_array_equal(total, whole_moe(model, x))


@pytest.mark.parametrize(
  "layout", ["vllm:tp=2", "vllm:tp=2,dp=3", "vllm:tp=2,dp=2,ep=4", "vllm:dp=3,ep=3"]
)
def test_vllm_experts(layout):
  model, x = make_model(6, 6, moe=True), inputs()
  _, sizes = parse(layout)
  total = np.zeros((TOKENS, HIDDEN))
  for rank, held in enumerate(expected_ranks(model, layout)):
    mine = experts_of(EXPERTS, sizes.ep, rank) if sizes.ep > 1 else range(EXPERTS)
    route = x @ held["model.layers.0.mlp.gate.weight"].data.T
    w13 = held["model.layers.0.mlp.experts.routed_experts.w13_weight"].data
    w2 = held["model.layers.0.mlp.experts.routed_experts.w2_weight"].data
    assert len(w13) == len(w2) == len(mine)
    for expert, fused, down in zip(mine, w13, w2, strict=True):
      total += route[:, [expert]] * local_mlp(x, fused, down)
  np.testing.assert_array_equal(total, whole_moe(model, x))


@pytest.mark.parametrize(
  "layout, embedding, head",
  [
    ("megatron:tp=2", "embedding.word_embeddings.weight", "output_layer.weight"),
    ("megatron:tp=3,vocab_multiple=5", "embedding.word_embeddings.weight", "output_layer.weight"),
    ("vllm:tp=3", "model.embed_tokens.weight", "lm_head.weight"),
  ],
)
def test_vocabulary(layout, embedding, head):
  model, x = make_model(6, 6), inputs()
  ranks = expected_ranks(model, layout)
  run = len(ranks[0][embedding].data)
  tokens = np.arange(VOCAB)
  looked_up = np.zeros((VOCAB, HIDDEN))
  for rank, held in enumerate(ranks):
    mine = tokens // run == rank
    looked_up[mine] += held[embedding].data[tokens[mine] - rank * run]
  np.testing.assert_array_equal(looked_up, model.find("model.embed_tokens.weight").data)
  logits = np.concatenate([x @ held[head].data.T for held in ranks], axis=1)
  np.testing.assert_array_equal(logits[:, :VOCAB], x @ model.find("lm_head.weight").data.T)
