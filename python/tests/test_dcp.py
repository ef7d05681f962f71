# SPDX-License-Identifier: Apache-2.0
"""Protects: what torch.distributed.checkpoint writes, reshard reads to the byte, and the other way round;
a checkpoint's pickles run nothing."""

import io
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

torch = pytest.importorskip("torch")

import dcp_process
import dtensor_process
import reshard
import reshard.dcp
from serving import run, serving
from safetensors.torch import load_file

SIZE = 4


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
  with serving(dcp_process.serve, SIZE, tmp_path_factory.mktemp("store")) as pipes:
    yield pipes


@pytest.fixture(scope="module")
def written(processes, tmp_path_factory):
  """The folder of a case's checkpoint, written by torch: dcp/ and whole.pt."""
  folders = {}

  def get(case):
    if case not in folders:
      folders[case] = tmp_path_factory.mktemp("written") / case
      run(processes, "write", case, str(folders[case]))
    return folders[case]

  return get


def same(tensor, other):
  bits = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (tensor, other)]
  return tensor.shape == other.shape and tensor.dtype == other.dtype and torch.equal(*bits)


@pytest.mark.parametrize("case", dtensor_process.CASES)
def test_what_torch_writes_is_read_and_written_back_for_torch(processes, written, tmp_path, case):
  folder = written(case)
  whole = torch.load(folder / "whole.pt")
  report = reshard.convert(folder / "dcp", tmp_path / "hf", to="hf", progress=False)
  assert report.ignored == []  # the step is an object, and no tensor
  read = load_file(tmp_path / "hf" / "model.safetensors")
  assert same(read.pop("optimizer.w.exp_avg"), torch.arange(3.0))
  assert sorted(read) == sorted(f"model.{name}" for name in whole)
  for name, value in whole.items():
    assert same(read[f"model.{name}"], value), name

  reshard.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp:shard=3", progress=False)
  assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 3
  assert reshard.verify(folder / "dcp", tmp_path / "dcp", progress=False)
  run(processes, "read", case, str(tmp_path / "dcp"), str(folder / "whole.pt"))


@pytest.mark.parametrize("case", ("fsdp-uneven", "hsdp", "fsdp-tp-uneven", "two-meshes"))
def test_pieces_that_torch_writes_as_safetensors_are_read_and_written_back(processes, tmp_path, case):
  folder = tmp_path / "torch"
  run(processes, "write_safetensors", case, str(folder))
  whole = torch.load(folder / "whole.pt")
  model = reshard.open_model(str(folder / "hf"))
  assert model.weights.kind == "dcp"
  assert {t.name: list(t.shape) for t in model.tensors} == {
    f"model.{name}": list(value.shape) for name, value in whole.items()
  }
  for source in ("hf", "merged", "metadata"):
    report = reshard.convert(folder / source, tmp_path / source, to="hf", progress=False)
    assert report.ignored == [], source
    read = load_file(tmp_path / source / "model.safetensors")
    for name, value in whole.items():
      merged_scalar = source == "merged" and value.dim() == 0  # torch leaves these zero
      assert merged_scalar or same(read[f"model.{name}"], value), (source, name)
  assert reshard.verify(folder / "hf", tmp_path / "hf", progress=False)
  run(processes, "read_ours", case, str(folder / "hf"), str(folder / "whole.pt"), False)

  reshard.convert(folder / "hf", tmp_path / "back", to="dcp:shard=3,format=safetensors", progress=False)
  assert not (tmp_path / "back" / ".metadata").exists()
  assert reshard.verify(folder / "metadata", tmp_path / "back", ignore={"optimizer.*"}, progress=False)
  run(processes, "read_safetensors", case, str(tmp_path / "back"), str(folder / "whole.pt"))


def test_torch_merges_the_pieces_that_reshard_writes(written, tmp_path):
  from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

  reshard.convert(
    written("fsdp-uneven") / "dcp", tmp_path / "pieces", to="dcp:shard=4,format=safetensors", progress=False
  )
  names = [t.name for t in reshard.open_model(str(tmp_path / "pieces")).tensors]
  (tmp_path / "merged").mkdir()
  consolidate_safetensors_files(
    str(tmp_path / "pieces"), str(tmp_path / "merged"), dict.fromkeys(names, 1), num_threads=1
  )
  ignore = {"*.scale"}  # torch leaves scalars of merged files zero
  assert reshard.verify(tmp_path / "pieces", tmp_path / "merged", ignore=ignore, progress=False)


def test_safetensors_that_are_not_all_pieces_of_one_checkpoint_are_refused(written, tmp_path):
  folder = tmp_path / "pieces"
  to = "dcp:shard=4,format=safetensors"
  reshard.convert(written("fsdp-uneven") / "dcp", folder, to=to, progress=False)
  files = sorted(folder.glob("*.safetensors"))
  assert len(files) == 4
  for file in files:
    with pytest.raises(reshard.InvalidArgumentError, match="holds pieces of tensors; name its folder"):
      reshard.open_model(str(file))
  again = shutil.copy(files[0], folder / "shard-00009-model-00001-of-00001.safetensors")
  with pytest.raises(reshard.CorruptError, match="but its pieces have .* of two checkpoints"):
    reshard.open_model(str(folder))
  pathlib.Path(again).unlink()
  files[1].unlink()
  with pytest.raises(reshard.CorruptError, match="but its pieces have .* files are missing"):
    reshard.open_model(str(folder))


@pytest.mark.parametrize("case", ("fsdp-uneven", "fsdp-tp", "two-meshes"))
def test_load_of_torch_reads_through_reshard(processes, written, tmp_path, case):
  folder = written(case)
  run(processes, "read_ours", case, str(folder / "dcp"), str(folder / "whole.pt"), True)
  # From another format, and into another sharding than it was written from.
  reshard.convert(folder / "dcp", tmp_path / "hf", to="hf", progress=False)
  run(processes, "read_ours", case, str(tmp_path / "hf"), str(folder / "whole.pt"), False)


@pytest.mark.parametrize("layout", ("dcp", "safetensors"))
@pytest.mark.parametrize("case", ("fsdp-uneven", "fsdp-tp", "hsdp"))
def test_save_of_torch_writes_through_reshard(processes, tmp_path, case, layout):
  folder = tmp_path / "saved"
  run(processes, "write_ours", case, str(folder), layout)
  whole = torch.load(folder / "whole.pt")
  out = folder / "out"
  if layout == "safetensors":
    read = {k: v for file in out.glob("*.safetensors") for k, v in load_file(file).items()}
    assert sorted(read) == sorted(f"model.{name}" for name in whole)
    for name, value in whole.items():
      assert same(read[f"model.{name}"], value), name
    assert reshard.open_model(str(out)).tensors.bytes == sum(t.nbytes for t in whole.values())
  else:
    run(processes, "read", case, str(out), str(folder / "whole.pt"))
  assert not out.with_name("out.partial").exists()


def test_what_cannot_be_done_is_said_on_every_rank(processes, written):
  for said in run(processes, "refused", str(written("fsdp") / "dcp")):
    assert "gone" in said["missing"]
    assert "embed.weight" in said["shape"]
    assert "-gone" in said["no folder"]
    assert "step" in said["object as safetensors"]
    assert "exists" in said["there"]


def test_every_item_that_is_written_is_an_archive_with_its_checksums(written, tmp_path):
  import torch.distributed.checkpoint as dcp

  reshard.convert(written("fsdp-uneven") / "dcp", tmp_path / "dcp", to="dcp:shard=2", progress=False)
  places = dcp.FileSystemReader(tmp_path / "dcp").read_metadata().storage_data.values()
  assert len(places) > 20
  for place in places:
    file = (tmp_path / "dcp" / place.relative_path).read_bytes()
    archive = zipfile.ZipFile(io.BytesIO(file[place.offset : place.offset + place.length]))
    assert archive.testzip() is None
    assert "archive/data/0" in archive.namelist()


class Hostile:
  def __reduce__(self):
    return print, ("this must never be printed",)


def test_a_hostile_metadata_file_is_refused_by_the_name_of_what_it_wanted(written, tmp_path):
  shutil.copytree(written("fsdp") / "dcp", tmp_path / "dcp")
  for protocol in (2, 3, 4, 5):
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Hostile(), protocol))
    with pytest.raises(reshard.UnsupportedError, match=r'wants "(builtins|__builtin__)\.print"'):
      reshard.open_model(str(tmp_path / "dcp"))
    with pytest.raises(reshard.UnsupportedError, match=r"print"):
      reshard.dcp.StorageReader(tmp_path / "dcp").read_metadata()


def test_a_config_beside_it_makes_it_a_model(tmp_path):
  import torch.distributed.checkpoint as dcp

  reshard.synthesize("demo-moe", tmp_path / "hf", progress=False)
  tensors = load_file(tmp_path / "hf" / "model.safetensors")
  dcp.save({"app": {"model": tensors, "step": 3}}, checkpoint_id=tmp_path / "dcp", no_dist=True)
  shutil.copy(tmp_path / "hf" / "config.json", tmp_path / "dcp")
  assert reshard.verify(tmp_path / "hf", tmp_path / "dcp", progress=False)
  report = reshard.convert(tmp_path / "dcp", tmp_path / "vllm", to="vllm:tp=2", progress=False)
  assert report.ignored == []
  assert reshard.verify(tmp_path / "hf", tmp_path / "vllm", progress=False)
  reshard.convert(tmp_path / "vllm", tmp_path / "back", to="dcp:shard=4", progress=False)
  assert reshard.verify(tmp_path / "dcp", tmp_path / "back", progress=False)
  read = reshard.hf.load(tmp_path / "back", "vllm:tp=2", 1)
  for name, value in reshard.hf.load(tmp_path / "hf", "vllm:tp=2", 1).items():
    assert torch.equal(value, read[name]), name


@pytest.mark.parametrize("format", ["dcp", "safetensors"])
def test_experts_that_a_trainer_stacks_are_those_of_the_model(tmp_path, format):
  """As a model of transformers 5 in a trainer has them, saved and loaded through reshard."""
  import torch.distributed.checkpoint as dcp

  reshard.synthesize("demo-moe", tmp_path / "hf", progress=False)
  single = load_file(tmp_path / "hf" / "model.safetensors")
  stacked = reshard.hf.load(tmp_path / "hf", "fsdp:shard=1", 0)
  assert any(name.endswith(".experts.gate_up_proj") for name in stacked.keys() - single.keys())
  writer = reshard.dcp.StorageWriter(tmp_path / "saved", format=format)
  dcp.save(dict(stacked), storage_writer=writer, no_dist=True)
  shutil.copy(tmp_path / "hf" / "config.json", tmp_path / "saved")
  assert reshard.verify(tmp_path / "hf", tmp_path / "saved", progress=False)
  loaded = {name: torch.zeros_like(tensor) for name, tensor in stacked.items()}
  dcp.load(loaded, storage_reader=reshard.dcp.StorageReader(tmp_path / "saved"), no_dist=True)
  for name, tensor in stacked.items():
    assert same(tensor, loaded[name]), name
  for layout in ("vllm:tp=2", "megatron:tp=2"):
    of_trainer = reshard.hf.load(tmp_path / "saved", layout, 1)
    for name, tensor in reshard.hf.load(tmp_path / "hf", layout, 1).items():
      assert same(tensor, of_trainer[name]), name


def test_a_shard_of_a_stack_is_made_of_parts_of_experts(tmp_path):
  reshard.synthesize("demo-moe", tmp_path / "hf", progress=False)
  single = load_file(tmp_path / "hf" / "model.safetensors")
  stacked = reshard.hf.load(tmp_path / "hf", "fsdp:shard=1", 0)
  model = reshard.open_model(str(tmp_path / "hf"))
  held = next(t for t in reshard.layout("fsdp:shard=1", model).local(0) if "gate_up_proj" in t.name)
  experts, rows, columns = held.shape
  for box in (
    [(1, experts), (0, rows), (0, columns)],
    [(0, 2), (rows // 2 - 3, rows // 2 + 5), (1, columns - 2)],
    [(experts - 1, experts), (rows - 1, rows), (columns - 1, columns)],
  ):
    made = torch.full([end - begin for begin, end in box], float("nan"), dtype=torch.bfloat16)
    for part in reshard.dcp._clipped(held, box):
      source = single[part.tensor][tuple(slice(begin, end) for begin, end in part.box)]
      expert, row, column = part.at
      made[expert, row : row + source.shape[0], column : column + source.shape[1]] = source
    assert same(made, stacked[held.name][tuple(slice(begin, end) for begin, end in box)].contiguous())


def test_the_blocks_of_the_page_run(tmp_path):
  page = pathlib.Path(__file__).parents[2] / "docs/dcp.md"
  blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
  assert len(blocks) == 2
  same = "\nassert state['model']['w'].tolist() == [[0, 1, 2], [3, 4, 5]]\n"
  (tmp_path / "page.py").write_text("".join(blocks) + same)
  command = [sys.executable, "page.py"]
  result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
  assert result.returncode == 0, result.stderr[-3000:]
