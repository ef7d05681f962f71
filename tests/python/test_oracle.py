# SPDX-License-Identifier: Apache-2.0
"""The oracle's rules against numbers written by hand."""

import numpy as np
import pytest

import oracle_megatron as megatron
import oracle_vllm as vllm
from layout_table import PLAIN
from oracle import expected_ranks, parse
from oracle_join import MegatronJoin, VllmJoin
from oracle_megatron import MegatronSizes
from oracle_tensor import Tensor, column_shard, difference, pad_rows, row_shard
from oracle_vllm import VllmSizes


def tensor(values):
  return Tensor("U8", np.array(values, dtype=np.uint8))


def values(part):
  return part.data.tolist()


def test_shards_are_equal_runs():
  whole = tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
  assert values(row_shard(whole, 1, 2)) == [[5, 6, 7, 8]]
  assert values(column_shard(whole, 1, 2)) == [[3, 4], [7, 8]]
  with pytest.raises(AssertionError):
    column_shard(whole, 0, 3)


def test_padding_is_zero_rows_at_the_end():
  assert values(pad_rows(tensor([[1, 2]]), 3)) == [[1, 2], [0, 0], [0, 0]]


def test_difference_tells_names_dtypes_shapes_and_elements():
  one = {"a": tensor([1, 2]), "b": tensor([3])}
  assert difference(one, one) == []
  assert difference(one, {"a": tensor([1, 2])}) == ["missing: b"]
  assert difference({}, {"b": tensor([3])}) == ["unexpected: b"]
  assert difference({"a": tensor([1, 2])}, {"a": tensor([1, 9])}) == [
    "a: 1 of 2 elements differ, the first at (1,)"
  ]
  assert "shape" in difference({"a": tensor([1, 2])}, {"a": tensor([[1, 2]])})[0]
  assert "dtype" in difference({"a": tensor([1])}, {"a": Tensor("I8", np.array([1], np.uint8))})[0]


# Four query heads of two rows (1 to 4), two key heads (5, 6), two value heads (7, 8).
Q = tensor([10, 11, 20, 21, 30, 31, 40, 41])
K = tensor([50, 51, 60, 61])
V = tensor([70, 71, 80, 81])


def test_megatron_interleaves_by_query_group():
  fused = megatron.interleave_qkv(Q, K, V, 2)
  assert values(fused) == [10, 11, 20, 21, 50, 51, 70, 71, 30, 31, 40, 41, 60, 61, 80, 81]


def test_megatron_cuts_inside_groups_and_heads_when_ranks_exceed_heads():
  fused = megatron.interleave_qkv(Q, K, V, 2)
  assert values(row_shard(fused, 1, 4)) == [50, 51, 70, 71]
  assert values(row_shard(fused, 5, 8)) == [40, 41]
  assert values(row_shard(fused, 3, 16)) == [21]


@pytest.mark.parametrize(
  "tp, rank, expected",
  [
    (1, 0, [50, 51, 60, 61]),
    (2, 0, [50, 51]),
    (2, 1, [60, 61]),
    (4, 1, [50, 51]),
    (4, 2, [60, 61]),
    (8, 3, [50, 51]),
  ],
)
def test_vllm_repeats_key_heads_over_neighbours(tp, rank, expected):
  assert values(vllm.kv_shard(K, 2, tp, rank)) == expected


def test_gate_and_up_are_cut_before_they_are_joined():
  gate, up = tensor([1, 2, 3, 4]), tensor([5, 6, 7, 8])
  assert values(megatron.gate_and_up(gate, up, 1, 2)) == [3, 4, 7, 8]


@pytest.mark.parametrize(
  "args, expected",
  [
    ((6, 1), [6]),
    ((6, 3), [2, 2, 2]),
    ((6, 2, 2), [2, 4]),
    ((6, 2, None, 1), [5, 1]),
    ((6, 3, None, 4), [1, 1, 4]),
    ((5, 3, 1, 2), [1, 2, 2]),
    ((6, 4, 1, 1), [1, 2, 2, 1]),
    ((5, 2, 3, 2), [3, 2]),
  ],
)
def test_stages(args, expected):
  stages = megatron.stage_layers(*args)
  assert [len(stage) for stage in stages] == expected
  assert sum(stages, []) == list(range(args[0]))


@pytest.mark.parametrize("args", [(5, 2), (6, 3, 1), (5, 2, 3, 3), (5, 2, 2, 2)])
def test_stages_that_do_not_divide(args):
  with pytest.raises(AssertionError):
    megatron.stage_layers(*args)


def test_megatron_ranks():
  # tp fastest, then cp, dp; pp slowest. Experts: rank % ep when etp is 1, whatever tp and cp are.
  sizes = MegatronSizes(tp=2, ep=4, etp=1, dp=4)
  assert [megatron.coordinates(sizes, rank)[1:3] for rank in range(8)] == [
    (0, 0),
    (1, 1),
    (0, 2),
    (1, 3),
    (0, 0),
    (1, 1),
    (0, 2),
    (1, 3),
  ]
  assert megatron.coordinates(MegatronSizes(cp=2, ep=2), 1) == (0, 0, 1, 0)
  assert megatron.coordinates(MegatronSizes(tp=2, pp=2, dp=2, ep=2, etp=2), 7) == (1, 1, 1, 1)
  assert [
    megatron.coordinates(MegatronSizes(etp=2, ep=2, dp=4), rank)[2:] for rank in range(4)
  ] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
  "keys, dp",
  [
    (dict(tp=2), 1),
    (dict(ep=4), 4),
    (dict(tp=2, ep=4), 4),
    (dict(tp=2, ep=4, etp=1), 2),
    (dict(tp=3, ep=2), 2),
    (dict(tp=4, ep=2, etp=2), 1),
    (dict(tp=2, cp=2, ep=4), 2),
    (dict(tp=2, cp=2, ep=4, etp=1), 1),
    (dict(ep=4, etp=2), 8),
  ],
)
def test_megatron_default_dp_is_the_least_that_fits(keys, dp):
  assert MegatronSizes(**keys).dp == dp


def test_megatron_refuses_an_expert_grid_that_does_not_fill_a_stage():
  with pytest.raises(AssertionError):
    MegatronSizes(tp=2, ep=4, dp=1)


@pytest.mark.parametrize(
  "keys, padded",
  [
    (dict(tp=1), 256),
    (dict(tp=2), 256),
    (dict(tp=3), 384),
    (dict(tp=3, vocab_multiple=1), 132),
    (dict(tp=2, vocab_multiple=7), 140),
  ],
)
def test_megatron_vocabulary(keys, padded):
  table, sizes = tensor([[row] for row in range(131)]), MegatronSizes(**keys)
  shards = [values(megatron.vocab_shard(table, sizes, tp)) for tp in range(sizes.tp)]
  assert {len(shard) for shard in shards} == {padded // sizes.tp}
  assert sum(shards, []) == [[row] for row in range(131)] + [[0]] * (padded - 131)


@pytest.mark.parametrize(
  "rows, tp, padded", [(131, 1, 192), (131, 8, 192), (131, 3, 192), (200, 3, 384), (64, 2, 64)]
)
def test_vllm_vocabulary(rows, tp, padded):
  shards = [
    values(vllm.vocab_shard(tensor([[row] for row in range(rows)]), tp, index))
    for index in range(tp)
  ]
  assert {len(shard) for shard in shards} == {padded // tp}
  assert sum(shards, []) == [[row] for row in range(rows)] + [[0]] * (padded - rows)


def test_vllm_deals_experts_with_the_first_ranks_taking_one_more():
  assert [list(vllm.experts_of(10, 4, rank)) for rank in range(4)] == [
    [0, 1, 2],
    [3, 4, 5],
    [6, 7],
    [8, 9],
  ]
  assert [list(vllm.experts_of(8, 2, rank)) for rank in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_layout_strings():
  family, sizes = parse("megatron:tp=2,pp=2,norms=separate")
  assert family is megatron
  assert sizes == MegatronSizes(tp=2, pp=2, norms="separate")
  assert parse("vllm:tp=2,dp=2,ep=4") == (vllm, VllmSizes(tp=2, dp=2, ep=4))
  with pytest.raises(TypeError):
    parse("vllm:stages=2")
  with pytest.raises(ValueError):
    parse("fsdp:dp=2")


@pytest.mark.parametrize("name, layout", PLAIN, ids=[f"{name}-{layout}" for name, layout in PLAIN])
def test_what_is_sliced_can_be_put_together_again(name, layout, checkpoint):
  _, model = checkpoint(name)
  family, sizes = parse(layout)
  join = MegatronJoin if family is megatron else VllmJoin
  wrong = difference(model.tensors, join(model, sizes, expected_ranks(model, layout)).whole())
  assert not wrong, "\n".join(wrong)
