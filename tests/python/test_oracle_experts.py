# SPDX-License-Identifier: Apache-2.0
"""As test_oracle_meaning.py for stacked experts with biases, experts without a gate between latent
projections, shared experts, redundant experts and the ways to store and place experts."""

import json

import numpy as np
import pytest

from oracle import expected_ranks, parse
from oracle_megatron import coordinates
from oracle_model import Model
from oracle_tensor import Tensor
from oracle_vllm import experts_of

HIDDEN, INNER, LATENT, EXPERTS, TOKENS, VOCAB = 6, 8, 4, 4, 3, 8


def make_model(shapes, prefix="model.layers.0.", **config):
  random = np.random.default_rng(5)
  shapes = {prefix + name: shape for name, shape in shapes.items()}
  table, norm = "model.embed_tokens.weight", "model.norm.weight"
  if prefix.startswith("backbone"):
    table, norm = "backbone.embeddings.weight", "backbone.norm_f.weight"
  shapes |= {table: (VOCAB, HIDDEN), norm: (HIDDEN,)}
  tensors = {
    name: Tensor("F64", random.integers(-3, 4, shape).astype(np.float64))
    for name, shape in shapes.items()
  }
  return Model(tensors, 1, 4, 4, 2, config)


def stacked_model():
  return make_model(
    {
      "post_attention_layernorm.weight": (HIDDEN,),
      "mlp.router.weight": (EXPERTS, HIDDEN),
      "mlp.router.bias": (EXPERTS,),
      "mlp.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * INNER),
      "mlp.experts.gate_up_proj_bias": (EXPERTS, 2 * INNER),
      "mlp.experts.down_proj": (EXPERTS, INNER, HIDDEN),
      "mlp.experts.down_proj_bias": (EXPERTS, HIDDEN),
    }
  )


def inputs():
  return np.random.default_rng(1).integers(-3, 4, (TOKENS, HIDDEN)).astype(np.float64)


def glu(gate, up):
  return gate * gate * up


def whole_stacked(model, x):
  find = lambda name: model.layer(0, f"mlp.{name}").data  # noqa: E731
  total = 0
  for e in range(EXPERTS):
    both = x @ find("experts.gate_up_proj")[e] + find("experts.gate_up_proj_bias")[e]
    y = glu(both[:, 0::2], both[:, 1::2]) @ find("experts.down_proj")[e]
    route = x @ find("router.weight")[e] + find("router.bias")[e]
    total = total + route[:, None] * (y + find("experts.down_proj_bias")[e])
  return total


@pytest.mark.parametrize(
  "keys", ["tp=1", "tp=2", "ep=2,etp=2", "tp=2,ep=4,etp=1", "tp=2,ep=2,experts=sequential"]
)
def test_megatron_stacked_experts(keys):
  model, x = stacked_model(), inputs()
  _, sizes = parse(f"megatron:{keys}")
  at, seen, total = "decoder.layers.0.mlp.", set(), 0
  for rank, held in enumerate(expected_ranks(model, f"megatron:{keys}")):
    _, _, ep, etp = coordinates(sizes, rank)
    if (ep, etp) in seen:
      continue
    seen.add((ep, etp))
    route = x @ held[f"{at}router.weight"].data.T + held[f"{at}router.bias"].data
    for local in range(EXPERTS // sizes.ep):

      def part(name, local=local, held=held):
        if "sequential" in keys:
          return held[f"{at}experts.local_experts.{local}.{name}"].data
        return held[f"{at}experts.{name}{local}"].data

      both = x @ part("linear_fc1.weight").T + part("linear_fc1.bias")
      y = glu(*np.split(both, 2, axis=1)) @ part("linear_fc2.weight").T
      y = y + (etp == 0) * part("linear_fc2.bias")
      total = total + route[:, [ep * (EXPERTS // sizes.ep) + local]] * y
  assert len(seen) == sizes.ep * sizes.etp
  np.testing.assert_array_equal(total, whole_stacked(model, x))


@pytest.mark.parametrize(
  "keys", ["tp=1", "tp=2", "tp=2,dp=2", "tp=2,dp=2,ep=4", "tp=2,ep=2,transposed=1"]
)
def test_vllm_stacked_experts(keys):
  model, x = stacked_model(), inputs()
  _, sizes = parse(f"vllm:{keys}")
  at, total = "model.layers.0.mlp.", 0
  for rank, held in enumerate(expected_ranks(model, f"vllm:{keys}")):
    mine = experts_of(EXPERTS, sizes.ep, rank) if sizes.ep > 1 else range(EXPERTS)
    route = x @ held[f"{at}router.weight"].data.T + held[f"{at}router.bias"].data
    names = ("w13_weight", "w13_bias", "w2_weight", "w2_bias")
    w13, w13_bias, w2, w2_bias = (held[f"{at}experts.routed_experts.{name}"].data for name in names)
    if sizes.transposed:
      w13, w2 = w13.swapaxes(1, 2), w2.swapaxes(1, 2)
    for local, e in enumerate(mine):
      both = x @ w13[local].T + w13_bias[local]
      y = glu(both[:, 0::2], both[:, 1::2]) @ w2[local].T + w2_bias[local]
      total = total + route[:, [e]] * y
  np.testing.assert_array_equal(total, whole_stacked(model, x))


def latent_model():
  shapes = {"norm.weight": (HIDDEN,), "mixer.gate.weight": (EXPERTS, HIDDEN)}
  shapes |= {"mixer.gate.e_score_correction_bias": (EXPERTS,)}
  for e in range(EXPERTS):
    shapes[f"mixer.experts.{e}.up_proj.weight"] = (INNER, LATENT)
    shapes[f"mixer.experts.{e}.down_proj.weight"] = (LATENT, INNER)
  shapes |= {
    "mixer.fc1_latent_proj.weight": (LATENT, HIDDEN),
    "mixer.fc2_latent_proj.weight": (HIDDEN, LATENT),
    "mixer.shared_experts.up_proj.weight": (INNER, HIDDEN),
    "mixer.shared_experts.down_proj.weight": (HIDDEN, INNER),
  }
  return make_model(shapes, "backbone.layers.0.")


def squared_mlp(x, up, down):
  return (x @ up.T) ** 2 @ down.T


def whole_latent(model, x):
  find = lambda name: model.layer(0, f"mixer.{name}.weight").data  # noqa: E731
  small, route, total = x @ find("fc1_latent_proj").T, x @ find("gate").T, 0
  for e in range(EXPERTS):
    parts = (find(f"experts.{e}.{name}_proj") for name in ("up", "down"))
    total = total + route[:, [e]] * squared_mlp(small, *parts)
  shared = squared_mlp(x, find("shared_experts.up_proj"), find("shared_experts.down_proj"))
  return total @ find("fc2_latent_proj").T + shared


@pytest.mark.parametrize("keys", ["tp=1", "tp=2", "tp=2,ep=2,etp=1"])
def test_megatron_latent_experts(keys):
  model, x = latent_model(), inputs()
  _, sizes = parse(f"megatron:{keys}")
  at, total = "decoder.layers.0.mlp.", 0
  for rank, held in enumerate(expected_ranks(model, f"megatron:{keys}")):
    part = lambda name: held[f"{at}{name}"].data  # noqa: B023,E731
    _, _, ep, etp = coordinates(sizes, rank)
    small, route, latent = x @ part("fc1_latent_proj.weight").T, x @ part("router.weight").T, 0
    for local in range(EXPERTS // sizes.ep):
      parts = (part(f"experts.linear_fc{number}.weight{local}") for number in (1, 2))
      e = ep * (EXPERTS // sizes.ep) + local
      latent = latent + route[:, [e]] * squared_mlp(small, *parts)
    total = total + latent @ part("fc2_latent_proj.weight").T
    parts = (part(f"shared_experts.linear_fc{number}.weight") for number in (1, 2))
    total = total + squared_mlp(x, *parts)
  np.testing.assert_array_equal(total, whole_latent(model, x))


@pytest.mark.parametrize("keys", ["tp=1", "tp=2", "tp=2,dp=2,ep=4", "dp=4,ep=4"])
def test_vllm_latent_experts(keys):
  model, x = latent_model(), inputs()
  _, sizes = parse(f"vllm:{keys}")
  at, total = "model.layers.0.mixer.", 0
  for rank, held in enumerate(expected_ranks(model, f"vllm:{keys}")):
    part = lambda name: held[f"{at}{name}"].data  # noqa: B023,E731
    small, route, latent = x @ part("fc1_latent_proj.weight").T, x @ part("gate.weight").T, 0
    mine = experts_of(EXPERTS, sizes.ep, rank) if sizes.ep > 1 else range(EXPERTS)
    for local, e in enumerate(mine):
      parts = (part(f"experts.routed_experts.{name}_weight")[local] for name in ("w13", "w2"))
      latent = latent + route[:, [e]] * squared_mlp(small, *parts)
    total = total + latent @ part("fc2_latent_proj.weight").T
    whole = len(part("shared_experts.up_proj.weight")) == INNER
    assert whole == (sizes.tp == 1 or (sizes.ep > 1 and sizes.dp > 1))
    if not whole or rank == 0:
      parts = (part(f"shared_experts.{name}_proj.weight") for name in ("up", "down"))
      total = total + squared_mlp(x, *parts)
  np.testing.assert_array_equal(total, whole_latent(model, x))


def gated_model():
  shapes = {"post_attention_layernorm.weight": (HIDDEN,), "mlp.gate.weight": (EXPERTS, HIDDEN)}
  for e in range(EXPERTS):
    for name in ("gate", "up"):
      shapes[f"mlp.experts.{e}.{name}_proj.weight"] = (INNER, HIDDEN)
    shapes[f"mlp.experts.{e}.down_proj.weight"] = (HIDDEN, INNER)
  return make_model(shapes)


def expert_parts(model, e):
  names = (f"mlp.experts.{e}.{name}_proj.weight" for name in ("gate", "up", "down"))
  return [model.layer(0, name).data for name in names]


@pytest.mark.parametrize(
  "keys, table",
  [
    ("tp=2,ep=2,redundant=2", [[0, 1, 2], [3, 0, 1]]),
    ("tp=4,ep=4,redundant=4", [[0, 1], [2, 3], [0, 1], [2, 3]]),
    ("tp=2,ep=2,placement=round_robin", [[0, 2], [1, 3]]),
  ],
)
def test_vllm_placement(keys, table):
  model = gated_model()
  for held, experts in zip(expected_ranks(model, f"vllm:{keys}"), table, strict=True):
    w13 = held["model.layers.0.mlp.experts.routed_experts.w13_weight"].data
    w2 = held["model.layers.0.mlp.experts.routed_experts.w2_weight"].data
    assert len(w13) == len(w2) == len(experts)
    for local, e in enumerate(experts):
      gate, up, down = expert_parts(model, e)
      np.testing.assert_array_equal(w13[local], np.concatenate([gate, up]))
      np.testing.assert_array_equal(w2[local], down)


def test_vllm_table_of_experts(tmp_path):
  path = tmp_path / "map.json"
  path.write_text(json.dumps([[3, 2, 1, 0, 0, 3]]))
  ranks = expected_ranks(gated_model(), f"vllm:tp=2,ep=2,redundant=2,expert_map={path}")
  for held, experts in zip(ranks, [[3, 2, 1], [0, 0, 3]], strict=True):
    w2 = held["model.layers.0.mlp.experts.routed_experts.w2_weight"].data
    for local, e in enumerate(experts):
      np.testing.assert_array_equal(w2[local], expert_parts(gated_model(), e)[2])


def test_vllm_order_and_storage():
  model = gated_model()
  gate, up, down = expert_parts(model, 1)
  held = expected_ranks(model, "vllm:tp=2,w13=up_first,transposed=1,experts=experts")[1]
  at = "model.layers.0.mlp.experts."
  half = slice(INNER // 2, INNER)
  expected = np.concatenate([up[half], gate[half]]).T
  np.testing.assert_array_equal(held[f"{at}w13_weight"].data[1], expected)
  np.testing.assert_array_equal(held[f"{at}w2_weight"].data[1], down[:, half].T)
