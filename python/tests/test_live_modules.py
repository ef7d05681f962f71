# SPDX-License-Identifier: Apache-2.0
"""Protects: what ranks hold of Megatron-Core's modules is read by the config of each part of a model. tests/megatron has
the modules themselves."""

import types

import pytest

torch = pytest.importorskip("torch")

from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

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
