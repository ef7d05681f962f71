# SPDX-License-Identifier: Apache-2.0
"""reshard.hf: what is loaded is what the layout says, and what is saved is the checkpoint again."""

import json
import shutil
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


def test_files_of_the_model_are_saved_and_the_rest_is_named(checkpoint, tmp_path):
  origin = tmp_path / "in"
  shutil.copytree(checkpoint, origin)
  config = json.loads((origin / "config.json").read_text())
  left_over = config | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
  (origin / "config.json").write_text(json.dumps(left_over))
  belongs = ["tokenization_x.py", "additional_chat_templates/t.jinja", "LICENSE", "tekken.json"]
  for name in [*belongs, "optimizer.pt", "run.log"]:
    (origin / name).parent.mkdir(exist_ok=True)
    (origin / name).write_text(name)
  layout = reshard.layout("vllm:tp=2", reshard.open_model(str(checkpoint)))
  tensors = {rank: reshard.hf.load(checkpoint, layout, rank) for rank in layout.ranks}
  report = reshard.hf.save(tmp_path / "out", layout, tensors, companions=origin)
  for name in belongs:
    assert (tmp_path / "out" / name).read_text() == name
  assert [file.name for file in report.files_left_out] == ["optimizer.pt", "run.log"]
  assert all(file.why in repr(file) for file in report.files_left_out)
  # The weights are plain, whatever the config says.
  assert json.loads((tmp_path / "out" / "config.json").read_text()) == config


def test_a_model_of_the_examples_is_saved_with_its_config_alone(tmp_path):
  layout = reshard.layout("hf", reshard.open_model("demo-moe"))
  tensors = reshard.RankBuffers.allocate(layout)
  report = reshard.hf.save(tmp_path / "out", layout, {0: tensors.tensors(0)})
  assert report.files_left_out == []
  assert sorted(file.suffix for file in (tmp_path / "out").iterdir()) == [".json", ".safetensors"]
  assert reshard.open_model(str(tmp_path / "out")).config is not None


def test_a_folder_that_exists_is_not_written(checkpoint, tmp_path):
  layout = reshard.layout("hf", reshard.open_model(str(checkpoint)))
  tensors = {0: reshard.hf.load(checkpoint, layout)}
  with pytest.raises(reshard.IoError, match="exists"):
    reshard.hf.save(tmp_path, layout, tensors)


def test_a_quantised_layout_is_refused(checkpoint, tmp_path):
  layout = reshard.layout("vllm:tp=2,quant=fp8_channel", reshard.open_model(str(checkpoint)))
  with pytest.raises(reshard.UnsupportedError, match="plain values"):
    reshard.hf.save(tmp_path / "out", layout, {})
