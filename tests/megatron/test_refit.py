# SPDX-License-Identifier: Apache-2.0
"""Models of Megatron-Core hold after a refit by reshard.megatron what Megatron's own refit gives them, and
what their full tensors say, in four processes."""

import pathlib
import re

import pytest
import refit_rank
from serving import run, serving

PAGE = pathlib.Path(__file__).parents[2] / "docs/megatron.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SIZE = 4
EVERYONE = list(range(SIZE))


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  with serving(refit_rank.serve, SIZE, tmp_path_factory.mktemp("store")) as pipes:
    yield pipes


@pytest.mark.parametrize(
  ("name", "source", "target"),
  [("llama", "tp=2", "tp=1"), ("llama", "tp=1", "tp=2"), ("llama", "pp=2", "tp=2"), ("nemotron", "pp=2", "pp=2")],
)
def test_both_ways_in_deliver_what_megatron_delivers(processes, name, source, target):
  assert run(processes, "as_megatron_does", name, source, target) == [[]] * SIZE


@pytest.mark.parametrize(
  ("name", "source", "target", "method"),
  [
    ("llama", "pp=2", "tp=2", "gloo"),
    ("qwen3-moe", "ep=2", "ep=1", "nccl"),
    ("qwen3-moe", "tp=2,ep=2", "ep=4", "shm"),
    ("deepseek", "tp=2,ep=2", "pp=2", "nixl"),
    ("nemotron", "tp=2", "pp=2,ep=2", "nvshmem"),
    ("qwen2", "pp=2,vpp=2", "tp=2", "nccl_m2n"),
  ],
)
def test_the_drop_in_fills_every_rank(processes, name, source, target, method):
  assert run(processes, "drop_in", name, source, target, method, EVERYONE, EVERYONE) == [[]] * SIZE


@pytest.mark.parametrize(("sources", "targets"), [([0, 1], [2, 3]), ([0, 1], [3]), ([0, 1], [1, 2])])
def test_models_are_on_some_ranks_only(processes, sources, targets):
  arguments = ("qwen3-moe", "tp=2", "tp=1", "gloo", sources, targets)
  assert run(processes, "drop_in", *arguments) == [[]] * SIZE


def test_pools_are_filled_one_after_the_other(processes):
  assert run(processes, "pools", "qwen3-moe") == [[]] * SIZE


@pytest.mark.parametrize(("source", "target"), [("tp=2", "pp=2"), ("pp=2", "tp=2")])
def test_a_transform_written_for_megatron_is_called(processes, source, target):
  for wrong, finished in run(processes, "transformed", "llama", source, target):
    assert wrong == []
    assert finished >= 4


def test_buffers_of_the_target_take_the_dtypes_of_the_source(processes):
  assert run(processes, "buffers") == [([], {"torch.float32"}, True)] * SIZE


def test_a_replaced_model_and_cleared_caches_are_planned_anew(processes):
  assert run(processes, "replaced") == [[]] * SIZE


def test_an_error_on_one_rank_is_raised_on_all(processes):
  for rank, (said, wrong) in enumerate(run(processes, "refused")):
    front = "" if rank == 1 else "swap_model_weights: rank 1: "
    assert said[0] == f"InvalidArgumentError: {front}a int is no module of torch"
    assert said[1] == "TypeError: refit_method must be the name of a backend or a copy service"
    assert said[2] == "InvalidArgumentError: no rank has a source model"
    assert "NotFoundError" in said[3]
    assert "'decoder.layers.0.unknown'; the source model has no such tensor" in said[3]
    assert said[4].startswith(f"UnsupportedError: {front}the target's weights are MXFP8")
    assert wrong == []


def test_copies_that_do_not_match_are_named_on_all_ranks(processes):
  for rank, said in enumerate(run(processes, "unmatched")):
    assert "task 7 from rank 1 to 2 is sent, but not received" in said[0]
    assert "task 8 from rank 0 to 1 is received, but not sent" in said[0]
    assert "task 7 from rank 1 to 2: rank 1 has F32 [2], but rank 2 has BF16 [2]" in said[1]
    assert "task 1: no rank 9 in a group of 4" in said[2]
    came = float((rank - 1) % SIZE + 1)
    assert said[3] == [[came] * 3, [came] * 4, [came], []]


def test_a_rank_that_does_not_come_is_named(processes):
  for rank, (said, wrong) in enumerate(run(processes, "late")):
    assert rank == 3 or ("DeadlineError" in said and "3" in said)
    assert wrong == []


def test_the_blocks_of_the_page_run(processes):
  blocks = BLOCK.findall(PAGE.read_text())
  assert len(blocks) == 3
  assert run(processes, "page", blocks) == [[]] * SIZE
