# SPDX-License-Identifier: Apache-2.0
"""Protects: what ranks hold of Megatron-Core's modules is read by the config of each part of a model. tests/megatron has
the modules themselves."""

import types

import pytest

torch = pytest.importorskip("torch")

from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import reshard  # noqa: E402
from reshard.live._modules import held_by  # noqa: E402


@pytest.fixture
def second_of_two():
  torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
  yield torch.distributed.new_group([0, 1])
  torch.distributed.destroy_process_group()


def mlp(rows):
  """Half of the rows of a linear_fc1."""
  weight = torch.nn.Parameter(torch.empty(rows // 2, 3))
  weight.tensor_model_parallel, weight.partition_dim, weight.partition_stride = True, 0, 1
  module = torch.nn.Module()
  module.linear_fc1 = torch.nn.Module()
  module.linear_fc1.weight = weight
  return module


def test_a_tower_without_gates_is_in_a_model_with_gates(second_of_two):
  model = torch.nn.Module()
  model.config = types.SimpleNamespace(gated_linear_unit=True)
  model.pg_collection = types.SimpleNamespace(tp=second_of_two)
  model.mlp, model.tower = mlp(8), torch.nn.Module()
  model.tower.config = types.SimpleNamespace(gated_linear_unit=False)
  model.tower.mlp = mlp(8)
  rows = {held.name: held.runs[0] for held in held_by(model)}
  assert rows == {"mlp.linear_fc1.weight": ((2, 4), (6, 8)), "tower.mlp.linear_fc1.weight": ((4, 8),)}


def test_a_merger_without_gates_is_in_a_tower_with_gates(second_of_two):
  model = torch.nn.Module()
  model.config = types.SimpleNamespace(gated_linear_unit=True)
  model.pg_collection = types.SimpleNamespace(tp=second_of_two)
  for name, columns in (("mlp", 2), ("merger", 4)):
    part = mlp(8)
    part.linear_fc2 = torch.nn.Module()
    part.linear_fc2.weight = torch.nn.Parameter(torch.empty(3, columns))
    part.linear_fc1.bias = torch.nn.Parameter(torch.empty(4))
    part.linear_fc1.bias.tensor_model_parallel, part.linear_fc1.bias.partition_dim = True, 0
    model.add_module(name, part)
  rows = {held.name: held.runs[0] for held in held_by(model) if "fc1" in held.name}
  for key in ("weight", "bias"):
    assert rows[f"mlp.linear_fc1.{key}"] == ((2, 4), (6, 8))
    assert rows[f"merger.linear_fc1.{key}"] == ((4, 8),)


class NormOverHeads(torch.nn.Module):
  """Says of itself how many different shards a group has; its parameter says nothing."""

  def __init__(self, local, shards):
    super().__init__()
    self.local_dim, self.global_dim, self.shard_world_size = local, local * shards, shards
    self.weight = torch.nn.Parameter(torch.empty(local))


def test_a_norm_over_all_heads_is_cut_as_its_module_says(second_of_two):
  model = torch.nn.Module()
  model.pg_collection = types.SimpleNamespace(tp=second_of_two)
  model.q_layernorm, model.k_layernorm = NormOverHeads(6, 2), NormOverHeads(5, 1)
  held = {one.name: (one.shape, one.runs) for one in held_by(model)}
  assert held == {"q_layernorm.weight": ((12,), (((6, 12),),)), "k_layernorm.weight": ((5,), (((0, 5),),))}
  model.q_layernorm = NormOverHeads(6, 3)
  with pytest.raises(reshard.InvalidArgumentError, match="3 shards over a group of 2"):
    held_by(model)
