# SPDX-License-Identifier: Apache-2.0
"""Models of Megatron-Core hold after a refit by reshard.megatron what Megatron's own refit gives them, and
what their full tensors say, in four processes; also where weights are quantised, or cut again and padded."""

import os
import pathlib
import re

import pytest
import refit_special_rank
import torch
from serving import run, serving

import reshard

PAGE = pathlib.Path(__file__).parents[2] / "docs/megatron.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SIZE = 4
EVERYONE = list(range(SIZE))


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  with serving(refit_special_rank.serve, SIZE, tmp_path_factory.mktemp("store")) as pipes:
    yield pipes


@pytest.mark.parametrize(
  ("name", "source", "target"),
  [
    ("llama", "tp=2", "tp=1"),
    ("llama", "tp=1", "tp=2"),
    ("llama", "pp=2", "tp=2"),
    ("qwen3-moe", "ep=2", "ep=1"),
    ("qwen3-moe", "tp=2,ep=2", "ep=4"),
    ("deepseek", "tp=2,ep=2", "tp=2"),
    ("nemotron", "pp=2", "pp=2"),
  ],
)
def test_both_ways_in_deliver_what_megatron_delivers(processes, name, source, target):
  assert run(processes, "as_megatron_does", name, source, target) == [[]] * SIZE


def test_packed_parts_of_mamba_are_cut_one_by_one(processes):
  """Megatron 0.16 cuts them as one tensor, so that its own plan, whoever carries it, mixes them."""
  for wrong, megatron_can in run(processes, "mamba_parts"):
    assert all(line.startswith(("megatron:", "service")) and ".mixer." in line for line in wrong)
    assert (wrong == []) == megatron_can


@pytest.mark.parametrize(("sources", "targets"), [([0, 1], [2, 3]), ([0, 1], [3])])
def test_both_ways_in_serve_disjoint_and_idle_ranks(processes, sources, targets):
  assert run(processes, "as_megatron_does", "qwen3-moe", "tp=2", "tp=1", sources, targets) == [[]] * SIZE


@pytest.mark.parametrize(
  ("name", "source", "target"), [("llama", "tp=2", "pp=2"), ("qwen3-moe", "ep=2", "tp=2"), ("nemotron", "pp=2", "tp=2")]
)
def test_worlds_that_number_their_ranks_alike_are_joined(processes, tmp_path, name, source, target):
  assert run(processes, "worlds", str(tmp_path), name, source, target) == [[]] * SIZE


@pytest.mark.parametrize(
  ("name", "source", "target", "method"),
  [
    ("qwen3-moe", "tp=2,ep=2", "ep=4", "shm"),
    ("deepseek", "tp=2,ep=2", "pp=2", "nixl"),
    ("nemotron", "tp=2", "pp=2,ep=2", "gloo"),
    ("qwen2", "pp=2,vpp=2", "tp=2", "nccl_m2n"),
  ],
)
def test_the_drop_in_fills_every_rank(processes, name, source, target, method):
  assert run(processes, "drop_in", name, source, target, method, EVERYONE, EVERYONE) == [[]] * SIZE


@pytest.mark.parametrize("method", ["nccl", "nvshmem"])
def test_a_backend_between_gpus_says_why_it_cannot_be_used(processes, method):
  if torch.cuda.is_available() and reshard.find_transport(method).available:
    pytest.skip(f"{method} can be used here")
  for said in run(processes, "unusable", method):
    assert said.startswith(f"UnsupportedError: transport '{method}' cannot be used here: "), said
    assert said.endswith("; 'auto' takes the best one that can"), said


@pytest.mark.skipif("NCCL_MULTI_RANK_GPU_ENABLE" not in os.environ, reason="needs a GPU that ranks of NCCL may share")
@pytest.mark.parametrize(("name", "source", "target"), [("qwen3-moe", "tp=2,ep=2", "ep=4"), ("nemotron", "tp=2", "pp=2,ep=2")])
def test_nccl_fills_every_rank(processes, name, source, target):
  assert run(processes, "drop_in", name, source, target, "nccl", EVERYONE, EVERYONE) == [[]] * SIZE


def test_models_are_on_ranks_that_overlap(processes):
  assert run(processes, "drop_in", "qwen3-moe", "tp=2", "tp=1", "auto", [0, 1], [1, 2]) == [[]] * SIZE


@pytest.mark.parametrize("way", ["drop-in", "service"])
def test_pools_are_filled_one_after_the_other(processes, way):
  found = run(processes, "pools", "qwen3-moe", way)
  if found[0] is None:
    pytest.skip("this release of Megatron-Core has no pools")
  assert found == [[]] * SIZE


@pytest.mark.parametrize(("source", "target"), [("tp=2", "pp=2"), ("pp=2", "tp=2")])
def test_a_transform_written_for_megatron_is_called(processes, source, target):
  for wrong, finished in run(processes, "transformed", "llama", source, target):
    assert wrong == []
    assert finished >= 4


@pytest.mark.parametrize(
  ("way", "source", "target", "sources", "targets", "swizzled"),
  [
    ("drop-in", "tp=2", "pp=2", EVERYONE, EVERYONE, True),
    ("drop-in", "tp=2", "tp=1", [0, 1], [2, 3], False),
    ("cleared", "pp=2", "tp=1", [0, 1, 2], [2, 3], True),
    ("megatron", "tp=2", "tp=1", EVERYONE, EVERYONE, True),
    ("megatron", "tp=2", "tp=1", [0, 1], [2, 3], False),
  ],
)
def test_a_target_in_mxfp8_holds_the_new_weights_quantised(
  processes, way, source, target, sources, targets, swizzled
):
  check_mxfp8(run(processes, "mxfp8", way, source, target, sources, targets, swizzled), targets)


def check_mxfp8(found, targets):
  if found[0] is None:
    pytest.skip("this release of Megatron-Core has no such transform")
  for rank, (quantised, wrong, stayed) in enumerate(found):
    assert wrong == []
    assert stayed
    assert quantised >= 4 or rank not in targets


@pytest.mark.parametrize("sources", [EVERYONE, [0, 1]])
def test_a_transform_may_quantise_before_sending(processes, sources):
  targets = EVERYONE if sources == EVERYONE else [2, 3]
  check_mxfp8(run(processes, "mxfp8", "sender", "tp=2", "tp=1", sources, targets, False), targets)


def test_what_is_derived_from_quantised_weights_is_renewed(processes):
  assert run(processes, "renewed") == [[1, 0]] * SIZE


def test_quantised_weights_that_would_not_be_written_are_named(processes):
  for said, wrong in run(processes, "mxfp8_errors"):
    assert ".weight' is quantised, and the transform does not take it" in said[0]
    assert "is quantised already: call prepare_swap_model_weights() while the target holds BF16" in said[1]
    assert "UnsupportedError" in said[2]
    assert "quantises a target of one chunk to MXFP8, but this one has 2" in said[2]
    assert wrong == []


@pytest.mark.parametrize(("source", "target"), [("tp=2", "tp=1"), ("tp=1", "pp=2")])
def test_parameters_of_a_quantised_type_are_quantised_once_when_whole(processes, source, target):
  for wrong, count, calls in run(processes, "quantised_parameters", source, target):
    assert wrong == []
    assert count >= 4
    assert calls == {2}  # when made, and by the refit


@pytest.mark.parametrize(
  ("name", "source", "target", "alignment"),
  [
    ("llama", "tp=2", "tp=1", 1),
    ("llama", "tp=2", "pp=2", 24),
    ("deepseek", "tp=2", "ep=2", 64),
    ("nemotron", "tp=2", "tp=1", 7),
  ],
)
def test_shards_that_are_cut_again_and_padded_are_moved_without_padding(processes, name, source, target, alignment):
  found = run(processes, "cut_again", name, source, target, alignment)
  assert [wrong for wrong, _, _ in found] == [[]] * SIZE
  assert all(kept for _, _, kept in found)
  assert any(padding > 0 for _, padding, _ in found) == (alignment > 1)


def test_shards_that_cannot_be_placed_are_named(processes):
  for said in run(processes, "cut_wrongly"):
    assert "linear_fc1.weight': is_gtp_weight_remat is set, but not the group of its shards" in said[0]
    assert "linear_fc1.weight': pad_length 1000 of 2 shards of" in said[1]


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
    assert "InvalidArgumentError" in said[4]
    assert "embedding.word_embeddings.weight" in said[4]
    assert wrong == []


def test_wrong_arguments_of_one_rank_are_said_on_all_at_once(processes):
  for rank, (said, wrong) in enumerate(run(processes, "refused_arguments")):
    front = "" if rank == 1 else "swap_model_weights: rank 1: "
    kind = "TypeError" if rank == 1 else "InvalidArgumentError"
    assert said == [
      f"{kind}: {front}refit_method must be the name of a backend or a copy service",
      f"InvalidArgumentError: {front}dst_pool_index=3: must be 0 or more, below num_dst_pools=1",
      f"InvalidArgumentError: {front}num_dst_pools=0: must be 1 or more",
      "InvalidArgumentError: swap_model_weights: num_dst_pools 2 on rank 1, but 1 on rank 0",
      "InvalidArgumentError: swap_model_weights: transport shm on rank 1, but auto on rank 0",
      f"InvalidArgumentError: {front}dst_pool_index=-1: must be 0 or more, below num_dst_pools=1",
    ]
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
  assert len(blocks) == 4
  assert run(processes, "page", blocks) == [[]] * SIZE
