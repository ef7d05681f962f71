# SPDX-License-Identifier: Apache-2.0
"""Models of Megatron-Core hold after a refit by reshard.megatron what Megatron's own refit gives them, and
what their full tensors say, in four processes."""

import multiprocessing

import pytest
import refit_rank
from test_of_modules import run

SIZE = 4
EVERYONE = list(range(SIZE))


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  store = tmp_path_factory.mktemp("store") / "file"
  context = multiprocessing.get_context("spawn")
  pipes, started = [], []
  for rank in range(SIZE):
    mine, theirs = context.Pipe()
    pipes.append(mine)
    started.append(context.Process(target=refit_rank.serve, args=(theirs, rank, SIZE, store), daemon=True))
    started[-1].start()
  yield pipes
  for pipe in pipes:
    pipe.send(None)
  for process in started:
    process.join(60)
    process.kill()


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
