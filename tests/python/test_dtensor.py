# SPDX-License-Identifier: Apache-2.0
"""What the program puts on each rank, against torch: distribute_tensor, fully_shard, and the local
shapes and offsets that torch computes. torch runs one process per test, as each rank in turn, on a
group that does not communicate.
"""

import contextlib
import json

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import (
  ColwiseParallel,
  RowwiseParallel,
  parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import program


def S(dim):
  return Shard(dim)


def SS(dim, split_factor):
  return _StridedShard(dim, split_factor=split_factor)


R = Replicate()

# (mesh, shape, placements): even and uneven, empty trailing shards, several mesh dimensions on one
# tensor dimension, strided shards with and without the shard that they were made for.
COMBINATIONS = [
  ((4,), (10,), [S(0)]),
  ((4,), (5, 3), [S(0)]),
  ((4,), (2, 3), [S(0)]),
  ((3,), (4, 7), [S(1)]),
  ((3,), (4, 7), [S(-1)]),
  ((2,), (3, 4, 5), [S(2)]),
  ((5,), (6, 4), [R]),
  ((2, 2), (8, 6), [S(0), S(1)]),
  ((2, 3), (8, 6), [S(1), S(0)]),
  ((2, 2), (7, 6), [S(0), S(0)]),
  ((2, 3), (10, 2), [S(0), S(0)]),
  ((3, 2), (4, 2), [S(0), S(0)]),
  ((2, 2), (9, 5), [R, S(0)]),
  ((2, 2), (9, 5), [S(1), R]),
  ((2, 2), (8, 6), [SS(0, 2), S(0)]),
  ((2, 2), (7, 6), [SS(0, 2), S(0)]),
  ((2, 4), (16, 3), [SS(0, 4), S(0)]),
  ((2, 4), (13, 3), [SS(0, 4), S(0)]),
  ((3, 2), (7, 3), [SS(0, 2), S(0)]),
  ((4, 2), (9, 1), [SS(0, 2), S(0)]),
  ((2, 2), (6, 8), [SS(1, 2), S(1)]),
  ((2, 2), (6, 9), [SS(1, 2), S(1)]),
  ((2,), (8, 2), [SS(0, 2)]),
  ((2,), (12, 2), [SS(0, 3)]),
  ((3,), (11, 2), [SS(0, 4)]),
  ((2, 2), (8, 6), [SS(0, 3), S(1)]),
  ((2, 2), (9, 7), [SS(0, 2), SS(1, 3)]),
  ((2, 2, 2), (8, 8), [R, SS(0, 2), S(0)]),
  ((2, 2, 2), (16, 3), [SS(0, 4), SS(0, 2), S(0)]),
  ((2, 2, 2), (11, 3), [SS(0, 4), SS(0, 2), S(0)]),
  ((2, 2, 2), (16, 3), [S(0), SS(0, 2), S(0)]),
  ((2, 2, 2), (6, 10), [S(0), S(1), S(1)]),
  ((2, 3, 2), (5, 7, 3), [S(1), S(0), S(1)]),
  ((2, 1, 2), (5, 7), [S(0), S(0), S(1)]),
  ((2, 1, 2), (5, 7), [SS(0, 1), S(1), S(0)]),
  ((1, 2, 2, 2), (9, 4), [R, S(0), S(1), S(0)]),
]


@contextlib.contextmanager
def as_rank(rank, world):
  """torch believes to be this rank of so many."""
  dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
  try:
    yield
  finally:
    dist.destroy_process_group()


def numbered(shape, start=0):
  """A tensor whose elements are all different."""
  count = int(np.prod(shape))
  return torch.arange(start, start + count, dtype=torch.int32).reshape(shape)


def convert(tmp_path, tensors, layout):
  """The tensors, cut by the program: its folder of ranks."""
  whole = tmp_path / "whole"
  whole.mkdir()
  save_file(tensors, whole / "model.safetensors")
  return program.RankFolder(program.convert(whole, tmp_path / "ranks", "hf", layout))


def check_local(held, name, local):
  assert held[name].data.shape == tuple(local.shape), name
  assert np.array_equal(held[name].data.view(np.int32), local.numpy()), name


def placement_file(tmp_path, mesh, rules):
  path = tmp_path / "placements.json"
  path.write_text(json.dumps({"meshes": [mesh], "rules": rules}))
  return f"dtensor:{path}"


@pytest.mark.parametrize(
  "mesh_shape, shape, placements",
  COMBINATIONS,
  ids=["x".join(map(str, m)) + "-" + str(s) + "-" + "".join(map(str, p)) for m, s, p in COMBINATIONS],
)
def test_ranks_hold_what_distribute_tensor_gives_them(mesh_shape, shape, placements, tmp_path):
  world = int(np.prod(mesh_shape))
  tensor = numbered(shape)
  layout = placement_file(
    tmp_path,
    {"name": "mesh", "shape": mesh_shape},
    [{"match": "*", "placements": [str(p) for p in placements]}],
  )
  ranks = convert(tmp_path, {"t": tensor}, layout)
  for rank in range(world):
    with as_rank(rank, world):
      mesh = init_device_mesh("cpu", mesh_shape)
      local = distribute_tensor(tensor, mesh, placements, src_data_rank=None).to_local()
      expected, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    check_local(ranks.rank(rank), "t", local)
    assert tuple(local.shape) == expected
    if local.numel() > 0:
      first = ranks.rank(rank)["t"].data.view(np.int32).flat[0]
      assert np.unravel_index(first, shape) == offset


def test_meshes_may_list_their_ranks(tmp_path):
  tensor = numbered((7, 6))
  order = [[3, 0, 5], [1, 4, 2]]
  layout = placement_file(
    tmp_path,
    {"name": "mesh", "shape": [2, 3], "ranks": sum(order, [])},
    [{"match": "*", "placements": ["S(1)", "S(0)"]}],
  )
  ranks = convert(tmp_path, {"t": tensor}, layout)
  for rank in range(6):
    with as_rank(rank, 6):
      mesh = DeviceMesh("cpu", order)
      local = distribute_tensor(tensor, mesh, [S(1), S(0)], src_data_rank=None).to_local()
    check_local(ranks.rank(rank), "t", local)


class Block(torch.nn.Module):
  """The modules that the usual plans of tensor parallelism name, with odd sizes."""

  def __init__(self, hidden, ffn, vocabulary):
    super().__init__()
    self.embed_tokens = torch.nn.Embedding(vocabulary, hidden)
    self.norm = torch.nn.LayerNorm(hidden, bias=False)
    for name in ("q_proj", "k_proj", "v_proj"):
      self.add_module(name, torch.nn.Linear(hidden, hidden))
    self.o_proj = torch.nn.Linear(hidden, hidden)
    self.gate_proj = torch.nn.Linear(hidden, ffn, bias=False)
    self.up_proj = torch.nn.Linear(hidden, ffn, bias=False)
    self.down_proj = torch.nn.Linear(ffn, hidden, bias=False)
    self.lm_head = torch.nn.Linear(hidden, vocabulary, bias=False)


PLAN = {
  "embed_tokens": RowwiseParallel(input_layouts=R),
  "q_proj": ColwiseParallel(),
  "k_proj": ColwiseParallel(),
  "v_proj": ColwiseParallel(),
  "o_proj": RowwiseParallel(),
  "gate_proj": ColwiseParallel(),
  "up_proj": ColwiseParallel(),
  "down_proj": RowwiseParallel(),
  "lm_head": ColwiseParallel(),
}


@pytest.mark.parametrize(
  "replicate, shard, tp, sizes",
  [
    (1, 1, 1, (4, 6, 10)),
    (1, 4, 1, (6, 10, 21)),
    (1, 8, 1, (5, 7, 11)),
    (2, 2, 1, (6, 9, 13)),
    (1, 2, 2, (8, 12, 20)),
    (1, 3, 2, (8, 14, 26)),
    (1, 2, 3, (7, 11, 17)),
    (2, 2, 2, (6, 10, 14)),
  ],
)
def test_ranks_hold_what_fully_shard_leaves_them(replicate, shard, tp, sizes, tmp_path):
  world = replicate * shard * tp
  state = Block(*sizes).state_dict()
  start, tensors = 0, {}
  for name, value in state.items():
    tensors[name] = numbered(value.shape, start)
    start += value.numel()
  keys = f"replicate={replicate},shard={shard},tp={tp}"
  ranks = convert(tmp_path, tensors, f"fsdp:{keys}")
  for rank in range(world):
    with as_rank(rank, world):
      mesh = init_device_mesh("cpu", (replicate, shard, tp), mesh_dim_names=("r", "s", "t"))
      block = Block(*sizes)
      with torch.no_grad():
        for name, parameter in block.named_parameters():
          parameter.copy_(tensors[name])  # whole numbers below 2^24 are exact in float32
      if tp > 1:
        parallelize_module(block, mesh["t"], PLAN, src_data_rank=None)
      fully_shard(block, mesh=mesh["r", "s"] if replicate > 1 else mesh["s"])
      held = {name: p.to_local().detach().int() for name, p in block.named_parameters()}
    assert set(ranks.rank(rank)) == set(held)
    for name, local in held.items():
      check_local(ranks.rank(rank), name, local)
