# SPDX-License-Identifier: Apache-2.0
"""Protects: the layout of DTensors is where torch has put them: a refit from and into them, in real
processes, gives and takes every byte of full_tensor()."""

import dtensor_process
import pytest
import torch
from serving import run, serving
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import reshard
from reshard.live._placements import runs_of, shards_of

SIZE = 4
# Without communication too: every tensor is on all ranks of one mesh.
ONE_MESH = {"fsdp", "fsdp-uneven", "fsdp-columns", "hsdp", "two-meshes"}


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  with serving(dtensor_process.serve, SIZE, tmp_path_factory.mktemp("store")) as pipes:
    yield pipes


@pytest.mark.parametrize("case", dtensor_process.CASES)
def test_a_refit_moves_every_byte(processes, case):
  for ranks, known_alone in run(processes, "refit", case):
    assert ranks == SIZE
    assert known_alone == (case in ONE_MESH)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_modules_of_transformers_have_the_names_of_their_checkpoint(processes, kind):
  assert min(run(processes, "transformers_case", kind)) > 10


def test_a_tensor_without_elements_is_no_error():
  layout = reshard.of_dtensors({"e": torch.zeros(0, 4), "w": torch.ones(2)})
  assert [(t.name, t.bytes) for t in layout.local(0)] == [("e", 0), ("w", 8)]


def test_what_is_no_layout_is_refused_by_name(processes):
  for said in run(processes, "refused"):
    assert "'a.b': placement" in said["partial"] and "has partial sums" in said["partial"]
    assert said["partial"].startswith("UnsupportedError")
    assert "no tensor 'w'" in said["unknown"] and "names=" in said["unknown"]
    assert "'layers.3.w' has shape [8, 3], but the model says [8, 2]" in said["shape"]
    assert "'w': its local tensor has shape [3, 2]" in said["local"] and "[2, 2] here" in said["local"]
    assert "'w': a int is no tensor" in said["no tensor"]
    assert "'w': its local tensor has shape [3, 2]" in said["of another rank"]
    assert "no rank holds a tensor" in said["nothing"]
    assert "no tensor is a DTensor" in said["alone"]


def test_names_are_mapped(processes):
  box = [(2, 4), (0, 2)]
  for found in run(processes, "names"):
    assert found["dict"] == [("net.block3._orig_mod.w", "layers.3.w", box)]
    assert found["function"] == [("W", "layers.3.w", box)]
    assert found["wrappers"] == [("layers.3._orig_mod._checkpoint_wrapped_module.w", "layers.3.w", box)]


def test_two_sides_of_one_group_each_describe_themselves(processes):
  assert run(processes, "two_sides") == [((0, 1), (2, 3))] * SIZE


@pytest.mark.parametrize(
  ("placements", "mesh", "extent", "at", "runs"),
  [
    ([Shard(0)], [4], 10, [3], ((9, 10),)),
    ([Shard(0)], [4], 5, [3], ((0, 0),)),
    ([Replicate(), Shard(-1)], [2, 2], 4, [1, 1], ((2, 4),)),
    ([Shard(0), Shard(0)], [2, 2], 9, [1, 0], ((5, 7),)),
    ([_StridedShard(0, split_factor=2), Shard(0)], [2, 2], 8, [0, 1], ((4, 6),)),
    # docs/dtensor.md: in FSDP2's memory the third shard of 7 rows is on tensor-parallel rank 1.
    ([_StridedShard(0, split_factor=2), Shard(0)], [3, 2], 7, [2, 0], ((0, 0),)),
    ([_StridedShard(0, split_factor=2), Shard(0)], [3, 2], 7, [2, 1], ((6, 7),)),
    # Without a shard that cut before it: by definition.
    ([_StridedShard(0, split_factor=2)], [2], 8, [1], ((2, 4), (6, 8))),
  ],
)
def test_runs_of_placements(placements, mesh, extent, at, runs):
  (shards,) = shards_of(placements, mesh, 1)
  assert runs_of(extent, shards, at) == runs
