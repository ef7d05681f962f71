# SPDX-License-Identifier: Apache-2.0
"""reshard.hf: what is loaded is what the layout says, and what is saved is the checkpoint again."""

import threading

import pytest
import reshard
import reshard.hf
from ranks import errors_in_threads


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  folder = tmp_path_factory.mktemp("hf") / "checkpoint"
  reshard.synthesize("demo-moe", folder, progress=False)
  return folder


def _bytes(tensor):
  if hasattr(tensor, "raw"):
    return bytes(tensor.raw())
  import torch  # another test of this process has imported it

  return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("text", ("megatron:tp=2,ep=4,etp=1", "vllm:tp=2", "fsdp:shard=3", "hf"))
def test_what_is_loaded_and_saved_is_the_checkpoint(checkpoint, tmp_path, text):
  layout = reshard.layout(text, reshard.open_model(str(checkpoint)))
  tensors = {rank: reshard.hf.load(checkpoint, layout, rank) for rank in layout.ranks}
  report = reshard.hf.save(tmp_path / "out", layout, tensors, max_shard_bytes=1 << 20)
  assert report.files > 1
  assert reshard.verify(checkpoint, tmp_path / "out", progress=False)
  configs = [folder / "config.json" for folder in (checkpoint, tmp_path / "out")]
  assert configs[0].read_bytes() == configs[1].read_bytes()
  assert not (tmp_path / "out.partial").exists()


def test_ranks_save_together(checkpoint, tmp_path):
  layout = reshard.layout("megatron:tp=2,pp=2", reshard.open_model(str(checkpoint)))
  reports, errors = [], []

  def one(group):
    try:
      with group:
        mine = reshard.hf.load(checkpoint, layout, group.rank)
        reports.append(reshard.hf.save(tmp_path / "out", layout, mine, group=group))
    except Exception as error:  # raised by the test
      errors.append(error)

  threads = [threading.Thread(target=one, args=(group,)) for group in reshard.local(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not errors
  assert {r.files for r in reports} == {reports[0].files}
  assert reshard.verify(checkpoint, tmp_path / "out", progress=False)


def _errors_of_a_save(layout, tensors, paths):
  """What each rank of a collective save raises; rank r saves tensors[r] to paths[r]."""
  return errors_in_threads(
    len(paths),
    lambda group: reshard.hf.save(paths[group.rank], layout, tensors[group.rank], group=group),
  )


def test_an_error_on_one_rank_is_an_error_on_all(checkpoint, tmp_path):
  layout = reshard.layout("vllm:tp=2", reshard.open_model(str(checkpoint)))
  tensors = [reshard.hf.load(checkpoint, layout, rank) for rank in range(2)]
  first, second = _errors_of_a_save(layout, tensors, [tmp_path, tmp_path])  # exists
  assert isinstance(first, reshard.IoError) and str(first) == f"{tmp_path} exists"
  assert isinstance(second, reshard.IoError) and str(second) == f"save: rank 0: {tmp_path} exists"
  missing = tmp_path / "not" / "there"
  first, second = _errors_of_a_save(layout, tensors, [tmp_path / "out", missing])
  assert isinstance(second, FileNotFoundError)
  assert isinstance(first, reshard.IoError) and str(first).startswith("save: rank 1: ")
  assert not (tmp_path / "out").exists()


def test_tensors_that_are_there_are_filled(checkpoint):
  layout = reshard.layout("vllm:tp=2", reshard.open_model(str(checkpoint)))
  fresh = reshard.hf.load(checkpoint, layout, 1)
  mine = reshard.RankBuffers.allocate(layout, [1]).tensors(1)
  assert reshard.hf.load(checkpoint, "vllm:tp=2", 1, mine).keys() == mine.keys()
  for name, tensor in mine.items():
    assert _bytes(tensor) == _bytes(fresh[name]), name


def test_a_folder_that_exists_is_not_written(checkpoint, tmp_path):
  layout = reshard.layout("hf", reshard.open_model(str(checkpoint)))
  tensors = {0: reshard.hf.load(checkpoint, layout)}
  with pytest.raises(reshard.IoError, match="exists"):
    reshard.hf.save(tmp_path, layout, tensors)


def test_a_quantised_layout_is_refused(checkpoint, tmp_path):
  layout = reshard.layout("vllm:tp=2,quant=fp8_channel", reshard.open_model(str(checkpoint)))
  with pytest.raises(reshard.UnsupportedError, match="plain values"):
    reshard.hf.save(tmp_path / "out", layout, {})
