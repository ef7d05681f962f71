# SPDX-License-Identifier: Apache-2.0
"""One rank of torch.distributed over gloo: writes and reads checkpoints with torch.distributed.checkpoint."""

import pathlib
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem
from dtensor_process import CASES, _bits, _full

import reshard
import reshard.dcp

warnings.filterwarnings("ignore", module="torch.distributed")


def _whole(tensors):
  """Every tensor of every rank, whole."""
  everything = [None] * dist.get_world_size()
  dist.all_gather_object(everything, _full(tensors))
  return {name: value for of_rank in everything for name, value in of_rank.items()}


def _check(tensors, whole):
  for name, value in _full(tensors).items():
    assert torch.equal(_bits(value), _bits(whole[name])), name


def _with_state(tensors):
  """As a trainer saves: a step, and a nested tensor of no model."""
  return {"model": tensors, "step": 7, "optimizer": {"w": {"exp_avg": torch.arange(3.0)}}}


def write(case, folder, writer=None):
  """torch writes the checkpoint; rank 0 also writes what it holds."""
  tensors = CASES[case]()
  whole = _whole(tensors)
  if dist.get_rank() == 0:
    pathlib.Path(folder).mkdir()
    torch.save(whole, f"{folder}/whole.pt")
  dist.barrier()
  dcp.save(_with_state(tensors), checkpoint_id=f"{folder}/dcp")


def write_safetensors(case, folder):
  """torch writes the tensors of a case as safetensors, in each of its ways; rank 0 also writes what they hold.

  hf        a file of pieces for each rank
  merged    those, and whole tensors made of them
  metadata  a .metadata file, and each rank's pieces and objects in one file
  """
  tensors = CASES[case]()
  whole = _whole(tensors)
  if dist.get_rank() == 0:
    pathlib.Path(folder).mkdir()
    torch.save(whole, f"{folder}/whole.pt")
  dist.barrier()
  state = {"model": tensors}
  writer = dcp.HuggingFaceStorageWriter(f"{folder}/hf", save_distributed=True)
  dcp.save(state, storage_writer=writer)
  names = sorted(f"model.{name}" for name in whole)
  numbers = {name: 1 + i % 2 for i, name in enumerate(names)}
  merging = dcp.HuggingFaceStorageWriter(
    f"{folder}/merged", numbers, save_distributed=True, enable_consolidation=True
  )
  dcp.save(state, storage_writer=merging)
  plain = dcp.FileSystemWriter(
    f"{folder}/metadata", serialization_format=filesystem.SerializationFormat.SAFETENSORS
  )
  dcp.save(_with_state(tensors), storage_writer=plain)


def read_safetensors(case, folder, whole):
  """torch's own reader loads pieces that reshard wrote, into the tensors of a case."""
  tensors = _cleared(case)
  dcp.load({"model": tensors}, storage_reader=dcp.HuggingFaceStorageReader(folder))
  _check(tensors, torch.load(whole))


def _cleared(case):
  tensors = CASES[case]()
  with torch.no_grad():
    for tensor in tensors.values():
      tensor.zero_()
  return tensors


def read(case, folder, whole):
  """torch's own reader loads what reshard wrote, into the tensors of a case."""
  tensors = _cleared(case)
  dcp.load({"model": tensors}, checkpoint_id=folder)
  _check(tensors, torch.load(whole))


def read_ours(case, folder, whole, step):
  """torch's load() through reshard's reader, from any checkpoint that reshard opens."""
  tensors = _cleared(case)
  state = _with_state(tensors) | {"step": 0}
  if not step:
    state = {"model": tensors}
  dcp.load(state, storage_reader=reshard.dcp.StorageReader(folder))
  _check(tensors, torch.load(whole))
  if step:
    assert state["step"] == 7
    assert torch.equal(state["optimizer"]["w"]["exp_avg"], torch.arange(3.0))


def write_ours(case, folder, layout):
  """torch's save() through reshard's writer."""
  tensors = CASES[case]()
  whole = _whole(tensors)
  if dist.get_rank() == 0:
    pathlib.Path(folder).mkdir()
    torch.save(whole, f"{folder}/whole.pt")
  dist.barrier()
  state = {"model": tensors} if layout == "safetensors" else _with_state(tensors)
  dcp.save(state, storage_writer=reshard.dcp.StorageWriter(f"{folder}/out", format=layout))


def refused(folder):
  """What is raised on this rank."""
  said = {}
  cases = {
    "missing": lambda: dcp.load(
      {"model": {"gone": torch.zeros(2)}}, storage_reader=reshard.dcp.StorageReader(folder)
    ),
    "shape": lambda: dcp.load(
      {"model": {"embed.weight": torch.zeros(3)}}, storage_reader=reshard.dcp.StorageReader(folder)
    ),
    "no folder": lambda: dcp.load({}, storage_reader=reshard.dcp.StorageReader(folder + "-gone")),
    "object as safetensors": lambda: dcp.save(
      {"step": 7}, storage_writer=reshard.dcp.StorageWriter(folder + "-st", format="safetensors")
    ),
    "there": lambda: dcp.save({"w": torch.ones(2)}, storage_writer=reshard.dcp.StorageWriter(folder)),
  }
  for name, call in cases.items():
    try:
      call()
      said[name] = None
    except BaseException as error:  # torch's CheckpointException is none of Exception
      said[name] = f"{type(error).__name__}: {error}"
  return said


def serve(pipe, rank, size, store):
  """Runs what the pipe names, until it is None: [function, arguments] -> (True, result) or (False, text)."""
  dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
  while (command := pipe.recv()) is not None:
    name, arguments = command
    try:
      pipe.send((True, globals()[name](*arguments)))
    except BaseException:
      pipe.send((False, traceback.format_exc()))
  dist.destroy_process_group()
