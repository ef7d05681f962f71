# SPDX-License-Identifier: Apache-2.0
"""The oracle's stages, names and values against what was worked out by hand, and against torch."""

import numpy as np
import pytest
import torch

import oracle_vllm
from oracle import expected_ranks, parse
from oracle_megatron import MegatronSizes, coordinates
from oracle_megatron_slices import interleave_gated_qkv, packed_shard
from oracle_pipeline import unroll, virtual_stages
from oracle_tensor import Tensor
from oracle_values import add, cast, from_float, negated_exp, steps_apart, to_float


def layers(keys, num_layers, num_mtp=0):
  sizes = MegatronSizes(**keys)
  stages = virtual_stages(sizes, num_layers, num_mtp)
  return [[chunk.layers for chunk in stage] for stage in stages]


@pytest.mark.parametrize(
  "keys, num_layers, expected",
  [
    (dict(pp=2, vpp=2), 8, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
    (dict(pp=2, vpp=4), 8, [[[0], [2], [4], [6]], [[1], [3], [5], [7]]]),
    (dict(pp=2, vpp=2, first=2), 6, [[[0], [3]], [[1, 2], [4, 5]]]),
    (dict(pp=2, account_embedding=1), 5, [[[0, 1]], [[2, 3, 4]]]),
    (dict(pp=2, account_loss=1), 5, [[[0, 1, 2]], [[3, 4]]]),
    (dict(pp=2, account_embedding=1, account_loss=1), 4, [[[0, 1]], [[2, 3]]]),
    (dict(pp=2, vpp=2, account_embedding=1, account_loss=1), 6, [[[0], [3, 4]], [[1, 2], [5]]]),
    (dict(pp=2, layout="Et|tttL"), 4, [[[0]], [[1, 2, 3]]]),
    (dict(pp=2, layout="Et|t|t|tL"), 4, [[[0], [2]], [[1], [3]]]),
    (dict(pp=2, layout="E|t*3|t|L"), 4, [[[], [3]], [[0, 1, 2], []]]),
  ],
)
def test_layers_of_virtual_stages(keys, num_layers, expected):
  assert layers(keys, num_layers) == expected


def test_what_else_a_stage_holds():
  stages = virtual_stages(MegatronSizes(pp=2, layout="Ett|t|t|mL"), 4, 1)
  marks = [[(chunk.embedding, chunk.loss, chunk.mtp) for chunk in stage] for stage in stages]
  first = [(True, False, []), (False, False, [])]
  assert marks == [first, [(False, False, []), (False, True, [0])]]


@pytest.mark.parametrize(
  "text, expected",
  [("Et*3|L", "Ettt|L"), ("E(tt|)*2L", "Ett|tt|L"), ("E(t|t*2|)*2mL", "Et|tt|t|tt|mL")],
)
def test_repetitions_in_a_layout(text, expected):
  assert unroll(text) == expected


def test_megatron_order_with_data_parallel_slowest():
  sizes = MegatronSizes(tp=2, pp=2, dp=2, order="tp-cp-ep-pp-dp")
  stages = [coordinates(sizes, rank)[0] for rank in range(8)]
  assert stages == [0, 0, 1, 1, 0, 0, 1, 1]


def test_vllm_ranks_and_stages():
  _, sizes = parse("vllm:tp=2,pp=2,dp=2")
  assert [oracle_vllm.coordinates(sizes, rank) for rank in range(8)] == [
    (0, 0, 0),
    (0, 1, 0),
    (1, 0, 0),
    (1, 1, 0),
    (0, 0, 1),
    (0, 1, 1),
    (1, 0, 1),
    (1, 1, 1),
  ]
  counts = [len(stage) for stage in oracle_vllm.stage_layers(10, 4)]
  assert counts == [2, 3, 3, 2]


def test_packed_parts_are_cut_one_by_one():
  whole = Tensor("U8", np.arange(8, dtype=np.uint8))
  assert packed_shard(whole, [4, 2, 2], 1, 2).data.tolist() == [2, 3, 5, 7]


def test_gates_follow_the_queries_of_their_group():
  q = Tensor("U8", np.array([10, 11, 20, 21, 30, 31, 40, 41], dtype=np.uint8))  # q, gate per head
  k, v = (Tensor("U8", np.array(part, dtype=np.uint8)) for part in ([50, 60], [70, 80]))
  fused = interleave_gated_qkv(q, k, v, 2, 1)
  assert fused.data.tolist() == [10, 20, 11, 21, 50, 70, 30, 40, 31, 41, 60, 80]


@pytest.mark.parametrize("name, layout", [("llama", "megatron:pp=2,vpp=3"), ("llama", "vllm:pp=4")])
def test_every_layer_is_on_one_stage(name, layout, checkpoint):
  model = checkpoint(name)[1]
  ends = ("input_layernorm.weight", "linear_qkv.layer_norm_weight")
  names = [name for held in expected_ranks(model, layout) for name in held if name.endswith(ends)]
  if layout.startswith("megatron"):
    chunks = [f"model{chunk}" for chunk in range(3)]
    expected = [f"{chunk}.decoder.layers.0.self_attention.{ends[1]}" for chunk in chunks * 2]
  else:
    expected = [f"model.layers.{index}.{ends[0]}" for index in range(6)]
  assert sorted(names) == sorted(expected)


TORCH = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def as_torch(tensor):
  bits = torch.from_numpy(tensor.data.copy())
  return bits.view(TORCH[tensor.dtype])


@pytest.mark.parametrize("source", TORCH)
@pytest.mark.parametrize("target", TORCH)
def test_casts_are_those_of_torch(source, target):
  torch.manual_seed(3)
  whole = from_float(torch.randn(2000).numpy() * 3, source)
  expected = as_torch(whole).to(TORCH[target])
  assert torch.equal(as_torch(cast(whole, target)), expected)


@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("amount", [1, -1])
def test_sums_are_those_of_torch(dtype, amount):
  torch.manual_seed(4)
  whole = from_float(torch.randn(2000).numpy(), dtype)
  assert torch.equal(as_torch(add(whole, amount)), as_torch(whole) + amount)


def test_negated_exponential():
  whole = from_float(np.linspace(-6, 4, 500), "BF16")
  expected = -torch.exp(as_torch(whole).float())
  got = negated_exp(whole)
  assert got.dtype == "F32"
  assert steps_apart(got.data, expected.numpy().view(np.uint32)) <= 1
  assert (to_float(got) < 0).all()
