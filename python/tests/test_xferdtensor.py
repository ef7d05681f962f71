# SPDX-License-Identifier: Apache-2.0
"""Protects: xferdtensor puts every element where torch's distribute_tensor does, in real processes, and an error
on one rank is one on all."""

import pathlib
import re

import pytest
import xferdtensor_process
from serving import run, serving

SIZE = 4


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  with serving(xferdtensor_process.serve, SIZE, tmp_path_factory.mktemp("store")) as pipes:
    yield pipes


def test_every_pair_of_meshes_and_placements(processes):
  for count, relations in run(processes, "all_pairs"):
    assert count >= 100
    assert relations == {"same", "overlapping", "disjoint"}


def test_a_batch_is_one_session(processes):
  """The list at the end has the same tensors, and uses the session of the blocks again."""
  assert run(processes, "one_batch") == [1] * SIZE


def test_a_second_call_uses_the_session_again_and_nothing_grows(processes):
  for same, new in run(processes, "reuse"):
    assert same == (0, 100, 0, 0)
    made, _, kept, files = new
    assert made == 100 and kept <= 1 and files <= 0


@pytest.mark.parametrize("what", ["memory", "dtypes", "others"])
def test_what_else_it_takes(processes, what):
  assert run(processes, what) == [True] * SIZE


@pytest.mark.parametrize("case", ["fsdp", "fsdp-uneven", "hsdp", "fsdp-tp", "fsdp-tp-uneven"])
def test_modules_of_torch(processes, case):
  for count in run(processes, "modules", case):
    assert count > 5


@pytest.mark.parametrize("overlap", [False, True], ids=["disjoint", "overlapping"])
def test_a_refit_of_every_kind_of_tensor(processes, overlap):
  """Dense and expert meshes, norms, routers, FP8 weights with scales, KV scales, tensors of other kinds."""
  assert run(processes, "every_kind", overlap) == [20] * SIZE


@pytest.mark.parametrize("what", ["tied", "tied_shards", "fsdp_modules"])
def test_a_refit_of_modules(processes, what):
  assert all(run(processes, what))


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_refit_into_an_engine(processes, kind):
  pytest.importorskip("transformers")
  assert min(run(processes, "engine", kind)) > 10


UNLIKE = {
  "only source": "NotFoundError: Refit: the target has no counterpart of the source's 'x.scale'",
  "only target": "NotFoundError: Refit: the source has no counterpart of the target's 'x.scale'",
  "shape": "'b': the full tensor 'b' has shape [4], but the model says [3]",
  "local": "'a': the full tensor 'a' has shape [8, 2], but the model says [2, 2]",
  "unplaced": "source_place: no rule says where 'b' lies",
  "fp8": "values are converted between F32, BF16 and F16 only",
  "layout": "need model=",
  "no module": "source: a module, a list of modules, a dict or None, not int",
  "of the model": "Refit: the target has no counterpart of the source's 'b'",
  "nothing": "no rank has a tensor as source",
}


def test_what_has_no_counterpart_is_named_on_every_rank(processes):
  for rank, said in enumerate(run(processes, "unlike")):
    for case, text in UNLIKE.items():
      assert said[case] is not None and text in said[case], (rank, case, said[case])


def test_the_blocks_of_the_page_run(processes):
  page = pathlib.Path(__file__).parents[2] / "docs/dtensor.md"
  text = page.read_text()
  first = text.index("## Between meshes")
  found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
  blocks = [(text.count("\n", 0, m.start(1)), m.group(1)) for m in found if m.start() > first]
  assert len(blocks) == 5
  for names in run(processes, "page", blocks):
    assert {"xdtensor_reshard", "mxn_cast", "refit", "reports"} <= set(names)


MESSAGES = {
  "shape": "tensor: src_tensor has shape [8, 2], but dst_tensor has [7, 2]",
  "local": "tensor: src_tensor has the local shape [3, 2] on rank 0, but a tensor of [8, 2]",
  "placements": "tensor: src_placement has 2 placements for a mesh of 1 dimensions",
  "dim": "tensor: src_placement cuts dimension 2 of a tensor of 2 dimensions",
  "outside": "tensor: src_mesh names ranks [7], which are not in the process group of ranks 0 to 3",
  "twice": "tensor: src_mesh names rank 1 twice",
  "ragged": "tensor: src_mesh: rows of ranks have different lengths",
  "missing": "tensor: rank 2 is in src_mesh, but passes no src_tensor",
  "extra": "tensor: src_tensor: this rank, ",
  "partial": "has partial sums",
  "meshes differ": "tensor: src_mesh is",
  "one rank": "tensor: src_tensor: a DTensor, a tensor",
  "dtype": "values are converted between F32, BF16 and F16 only",
  "dtypes": "the dtype of src_tensor is F32 on rank 0, but F64 on rank 1",
  "nobody": "tensor: no rank says src_mesh",
  "count": "1 tensors on rank 0, but 2 on rank 1",
  "expanded": "dst_tensor is expanded",
  "meta": "on meta has no memory",
  "handle": "a handle of NCCL",
  "buffer": "dst_local_shape [8, 2]: buf must be contiguous, with 16 elements",
  "group of others": "src_mesh names ranks [3], which are not in the process group of ranks 0 to 2",
  "in a batch": "one's own",
}


def test_what_is_wrong_is_named_on_every_rank(processes):
  for rank, said in enumerate(run(processes, "refused")):
    for case, text in MESSAGES.items():
      if (case, rank) != ("group of others", 3):
        assert said[case] is not None and text in said[case], (rank, case, said[case])
    assert ("ZeroDivisionError" in said["in a batch"]) == (rank == 1)
    assert rank == 1 or "rank 1: one's own" in said["in a batch"]
    assert ("rank 3: " in said["one rank"]) == (rank != 3)


def test_a_rank_that_does_not_come_is_named_at_the_deadline(processes):
  absent, *said = run(processes, "late")
  assert absent is None
  for text in said:
    assert "DeadlineError" in text or "AbortedError" in text
  assert any("rank 0" in text for text in said)
