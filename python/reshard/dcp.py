# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint, through reshard.

    dcp.load(state_dict, storage_reader=reshard.dcp.StorageReader("any checkpoint"))
    dcp.save(state_dict, storage_writer=reshard.dcp.StorageWriter("out", format="safetensors"))

The reader gives torch's own load() every checkpoint that `reshard.open_model` opens: of torch, of
Hugging Face, plain or quantised, or what `reshard.convert` wrote for the ranks of any layout. The
writer gives torch's own save() Hugging Face safetensors with whole tensors, or torch's own format.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, storage
from torch.distributed.checkpoint.metadata import (
  BytesStorageMetadata,
  ChunkStorageMetadata,
  Metadata,
  StorageMeta,
  TensorProperties,
  TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
  LoadItemType,
  LoadPlan,
  LoadPlanner,
  ReadItem,
  SavePlan,
  SavePlanner,
  WriteItem,
  WriteItemType,
)
from torch.futures import Future

import reshard
from reshard import hf
from reshard.live._second import same_tensor
from reshard.tracing._types import torch_dtype

__all__ = ["StorageReader", "StorageWriter"]

_METADATA = ".metadata"
_INDEXES = ("reshard.json", "model.safetensors.index.json", "model.safetensors")


def _done(value: Any) -> Future[Any]:
  future: Future[Any] = Future()
  future.set_result(value)
  return future


def _name(dtype: torch.dtype) -> str:
  return str(dtype).removeprefix("torch.")


class StorageReader(storage.StorageReader):
  """Reads any checkpoint for torch.distributed.checkpoint.load(). Every rank reads only its bytes.

  path     the checkpoint's folder or one of its files.
  prefix   of a checkpoint of torch.distributed.checkpoint, what its names begin with and the names of
           the state dict do not; by default its names are taken as they are.
  objects  what may be made of entries that are no tensors, such as a step: "plain" allows numbers,
           texts, containers and tensors; "any" runs whatever their pickles say, as torch does.
  threads  that read; 0: one for each core that this process may use.

  Names in the state dict are those of the checkpoint: torch flattens {"model": {"w": ...}} to
  "model.w", and modules of transformers 5 stack the experts of a layer. Where the config ties the head
  to the embedding, both names are there. Tensors are cast to the state dict's dtypes and dequantised on
  the way; any device will do. A pickle of the checkpoint's runs nothing but, for objects="any", the
  entries that are asked for.

  Errors: as torch wraps them, on every rank. Those of `reshard.open_model` for the files;
  UnsupportedError for an object that is not plain; CorruptError for tensors that the state dict has in
  one memory, but that differ in the checkpoint.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    *,
    prefix: str = "",
    objects: str = "plain",
    threads: int = 0,
  ) -> None:
    if objects not in ("plain", "any"):
      raise reshard.InvalidArgumentError(f"objects is {objects!r}; it must be 'plain' or 'any'")
    super().__init__()
    self._path = Path(path)
    self._prefix = prefix
    self._objects = objects
    self._threads = threads
    self._model: reshard.Model | None = None
    self._stacks: dict[str, reshard.LocalTensor] = {}

  def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
    """Begins a new load, of another checkpoint if one is named."""
    if checkpoint_id:
      self._path = Path(checkpoint_id)
    self._model = None

  @classmethod
  def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
    """Whether this reader can be asked for that checkpoint."""
    return Path(checkpoint_id).exists()

  def read_metadata(self, *_: Any, **__: Any) -> Metadata:
    """Every tensor as one whole chunk: where its pieces are is reshard's to know."""
    model = self._open()
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    inside = {fragment.tensor for stack in self._stacks.values() for fragment in stack.fragments}
    held = {t.name: (t.stored_shape, t.dtype) for t in model.tensors if t.name not in inside}
    held.update({name: (stack.shape, stack.dtype) for name, stack in self._stacks.items()})
    for name, (shape, dtype) in held.items():
      size = torch.Size(shape)
      whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
      properties = TensorProperties(dtype=torch_dtype(dtype.name.upper()))
      entries[name] = TensorStorageMetadata(properties, size, [whole])
    # A state dict has tied tensors under each name.
    entries.update({second: entries[name] for second, name in model.tied.items()})
    assert model.weights is not None
    entries.update({name: BytesStorageMetadata() for name in model.weights.objects})
    paths = {name: (name,) for name in entries}
    return Metadata(entries, paths, {}, StorageMeta(str(self._path)))

  def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
    """Nothing: every rank reads by itself."""

  def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
    return plan

  def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
    return plans

  def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
    """Fills this rank's part of the state dict."""
    self._read_tensors([i for i in plan.items if i.type != LoadItemType.BYTE_IO], planner)
    for item in plan.items:
      if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, self._object(item.storage_index.fqn))
    return _done(None)

  def _open(self) -> reshard.Model:
    if self._model is None:
      pieces = _holds_pieces(self._path)
      prefix = self._prefix if pieces else None
      self._model = reshard.open_model(str(self._path), exact=not pieces, prefix=prefix)
      if self._model.weights is None:
        raise reshard.InvalidArgumentError(f"{self._path} has no weights")
      self._stacks = _stacks(self._model)
    return self._model

  def _read_tensors(self, items: Sequence[ReadItem], planner: LoadPlanner) -> None:
    model = self._open()
    builder = reshard.LayoutBuilder("state dict", model)
    filled: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
    memory: dict[str, torch.Tensor] = {}
    first: dict[Any, tuple[str, torch.Tensor]] = {}  # of each memory, which tied tensors share
    shared: list[tuple[ReadItem, str, torch.Tensor, torch.Tensor]] = []
    for number, item in enumerate(items):
      target = planner.resolve_tensor(item).detach()
      place, other = (same_tensor(target), *_box(item)), _name_in(model, item)
      alone = place not in first
      direct = alone and target.device.type == "cpu" and target.is_contiguous()
      held = target if direct else torch.empty(target.shape, dtype=target.dtype)
      if alone:
        first[place] = other, held
        filled.append((item, target, held))
      else:
        shared.append((item, first[place][0], first[place][1], held))
        if first[place][0] == other:
          continue
      if held.numel():
        name = f"{number}: {item.storage_index.fqn}"
        memory[name] = held
        _add(builder, name, held, self._parts(model, item))
    if memory:
      asked = {_name_in(model, item) for item in items}
      for name in asked & self._stacks.keys():
        asked.update(fragment.tensor for fragment in self._stacks[name].fragments)
      for tensor in model.tensors:
        if tensor.name not in asked:
          builder.omit(tensor.name)
      buffers = reshard.RankBuffers(builder.finish(), {0: memory})
      reshard.load_weights(model, buffers, rank=0, threads=self._threads, progress=False)
    for item, name, held, again in shared:
      _check_same(name, _name_in(model, item), held, again)
      planner.commit_tensor(item, planner.resolve_tensor(item).detach())
    for item, target, held in filled:
      if held is not target:
        target.copy_(held)
      planner.commit_tensor(item, target)

  def _parts(self, model: reshard.Model, item: ReadItem) -> list[reshard.PlacedBox]:
    """The boxes of the model's tensors in the box of a tensor that an item asks for."""
    box = [(at, at + n) for at, n in zip(*_box(item), strict=True)]
    stack = self._stacks.get(item.storage_index.fqn)
    if stack is not None:
      return _clipped(stack, box)
    tensor = model.tensors[_name_in(model, item)]
    if list(tensor.shape) != list(tensor.stored_shape):
      raise reshard.UnsupportedError(
        f"{tensor.name}: the model has more dimensions than its file; load the folder without config.json"
      )
    return [reshard.PlacedBox(tensor.name, box, [0] * len(box))]

  def _object(self, name: str) -> io.BytesIO:
    weights = self._open().weights
    assert weights is not None
    path, offset, size = weights.objects[name]
    with open(path, "rb") as file:
      file.seek(offset)
      stream = io.BytesIO(file.read(size))
    if self._objects == "plain":
      try:
        torch.load(stream, weights_only=True)
      except Exception as error:
        raise reshard.UnsupportedError(
          f"{path}: {name!r} is no plain object; objects='any' would run what it says: {error}"
        ) from error
      stream.seek(0)
    return stream


def _holds_pieces(path: Path) -> bool:
  """Whether a checkpoint has pieces of tensors under the names of a state dict: `.metadata`, or no index."""
  if path.name == _METADATA or (path / _METADATA).exists():
    return True
  return path.is_dir() and not any((path / name).exists() for name in _INDEXES)


def _name_in(model: reshard.Model, item: ReadItem) -> str:
  """What the model calls the tensor that an item asks for."""
  name: str = item.storage_index.fqn
  return model.tied.get(name, name)


def _box(item: ReadItem) -> tuple[Any, ...]:
  """Which part of a tensor an item asks for."""
  return tuple(item.storage_offsets), tuple(item.lengths)


def _check_same(name: str, other: str, held: torch.Tensor, again: torch.Tensor) -> None:
  """Raises CorruptError unless what was read for one memory under two names is the same."""
  if name == other or held.numel() == 0:
    return
  bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (held, again)]
  if not torch.equal(*bits):
    raise reshard.CorruptError(
      f"'{name}' and '{other}' are one tied tensor in the state dict, but differ in the checkpoint"
    )


def _stacks(model: reshard.Model) -> dict[str, reshard.LocalTensor]:
  """The tensors of the files that hold several of the model: the experts of a layer."""
  names = set(model.stacked_names)
  if not names:
    return {}
  return {held.name: held for held in reshard.layout("fsdp:shard=1", model).local(0) if held.name in names}


def _clipped(stack: reshard.LocalTensor, box: Sequence[tuple[int, int]]) -> list[reshard.PlacedBox]:
  """The parts of a stack in a box of it, placed from the box's origin."""
  parts = []
  for fragment in stack.fragments:
    at, rest = [0] * len(stack.shape), fragment.offset
    for dim in reversed(range(len(at))):
      rest, at[dim] = divmod(rest, stack.shape[dim])
    lead = len(at) - len(fragment.box)  # dimensions of the stack alone: the expert
    if any(not box[dim][0] <= at[dim] < box[dim][1] for dim in range(lead)):
      continue
    kept, placed = [], [at[dim] - box[dim][0] for dim in range(lead)]
    for dim, (begin, end) in enumerate(fragment.box, lead):
      low = max(box[dim][0], at[dim])
      high = min(box[dim][1], at[dim] + end - begin)
      kept.append((begin + low - at[dim], begin + high - at[dim]))
      placed.append(low - box[dim][0])
    if all(low < high for low, high in kept):
      dims = list(range(lead, len(at)))
      parts.append(reshard.PlacedBox(fragment.tensor, kept, placed, dims))
  return parts


def _add(
  builder: reshard.LayoutBuilder, name: str, held: torch.Tensor, parts: Sequence[reshard.PlacedBox]
) -> None:
  """Adds a local tensor that holds these boxes."""
  builder.add([0], name, list(held.shape), _name(held.dtype), parts=parts, casts=True)


class StorageWriter(storage.StorageWriter):
  """Writes what torch.distributed.checkpoint.save() saves. The folder appears once it is complete.

  path             the folder to write; must not exist. All ranks see it.
  format           "dcp": as torch's FileSystemWriter, a file for each rank. "safetensors": a Hugging
                   Face checkpoint of whole tensors, into which every rank writes its shards in
                   place; objects that are no tensors are refused.
  max_shard_bytes  most tensor bytes in a file of safetensors.
  sync             return only when all data is on the disk.

  Errors: as torch wraps them, on every rank: IoError if the folder exists or the disk is full;
  UnsupportedError for what safetensors cannot hold.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    *,
    format: str = "dcp",
    max_shard_bytes: int = 5_000_000_000,
    sync: bool = False,
  ) -> None:
    if format not in ("dcp", "safetensors"):
      raise reshard.InvalidArgumentError(f"format is {format!r}; it must be 'dcp' or 'safetensors'")
    super().__init__()
    self._format = format
    self._max_shard_bytes = max_shard_bytes
    self._sync = sync
    self._files: list[Any] = []
    self.reset(path)

  def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
    """Begins a new save, to another folder if one is named."""
    if checkpoint_id:
      self._path = Path(checkpoint_id)
      self._partial = self._path.with_name(self._path.name + ".partial")
    self._torch = filesystem.FileSystemWriter(self._partial, sync_files=self._sync)

  @classmethod
  def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
    """Whether this writer can be asked for that folder."""
    return Path(checkpoint_id).absolute().parent.exists()

  def storage_meta(self) -> StorageMeta:
    return StorageMeta(str(self._path), save_id=self._torch.save_id)

  def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
    self._torch.set_up_storage_writer(is_coordinator)

  def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
    return plan

  def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
    """Makes the folder. Of safetensors also the files, with their headers: the plans say what there is."""
    if self._path.exists():
      raise reshard.IoError(f"{self._path} exists")
    places = self._cut(plans) if self._format == "safetensors" else {}
    shutil.rmtree(self._partial, ignore_errors=True)
    self._partial.mkdir(parents=True)
    if self._format == "dcp":
      return list(self._torch.prepare_global_plan(plans))
    for file in self._files:
      _make(self._partial / file.name, file)
    return [replace(plan, storage_data=places) for plan in plans]

  def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[storage.WriteResult]]:
    """Writes this rank's shards."""
    if self._format == "dcp":
      return self._torch.write_data(plan, planner)
    return _done([self._write(item, plan.storage_data[item.index.fqn], planner) for item in plan.items])

  def finish(self, metadata: Metadata, results: list[list[storage.WriteResult]]) -> None:
    """Writes the index, and gives the folder its name."""
    if self._format == "dcp":
      self._torch.finish(metadata, results)
    else:
      hf._write_index(self._partial, self._files)
    self._partial.rename(self._path)

  def _cut(self, plans: Sequence[SavePlan]) -> dict[str, tuple[str, int]]:
    """Where each tensor goes: its file, and the first byte there."""
    tensors: dict[str, tuple[Sequence[int], object]] = {}
    for item in (item for plan in plans for item in plan.items):
      if item.type == WriteItemType.BYTE_IO or item.tensor_data is None:
        raise reshard.UnsupportedError(f"{item.index.fqn!r} is no tensor; safetensors hold tensors only")
      data = item.tensor_data
      tensors[item.index.fqn] = list(data.size), _name(data.properties.dtype)
    self._files = []
    if tensors:
      self._files = hf._cut(reshard.Model.from_tensors("saved", tensors), 1, self._max_shard_bytes)
    return {
      name: (file.name, len(file.head) + at) for file in self._files for name, at in file.offsets.items()
    }

  def _write(self, item: WriteItem, place: tuple[str, int], planner: SavePlanner) -> storage.WriteResult:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, torch.Tensor) and item.tensor_data is not None
    tensor = tensor.detach().cpu().contiguous()
    name, begin = place
    handle = os.open(self._partial / name, os.O_WRONLY)
    try:
      offsets = list(item.tensor_data.chunk.offsets)
      _put(handle, begin, tensor, list(item.tensor_data.size), offsets)
      if self._sync:
        os.fsync(handle)
    finally:
      os.close(handle)
    return storage.WriteResult(item.index, tensor.nbytes, None)


def _make(path: Path, file: Any) -> None:
  handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
  try:
    os.posix_fallocate(handle, 0, file.size)  # a full disk is an error here, not halfway
    os.pwrite(handle, file.head, 0)
  finally:
    os.close(handle)


def _put(handle: int, begin: int, box: torch.Tensor, size: Sequence[int], offsets: Sequence[int]) -> None:
  """Writes a box of a row-major tensor that begins at byte `begin`: one write for each run of bytes."""
  if box.numel() == 0:
    return
  width = box.element_size()
  outer = len(size)  # dimensions before this one are not whole
  while outer and box.shape[outer - 1] == size[outer - 1]:
    outer -= 1
  run = max(outer - 1, 0)
  rows = box.reshape(-1, *box.shape[run:]) if box.dim() else box.reshape(1)
  strides = [width] * len(size)
  for i in range(len(size) - 2, -1, -1):
    strides[i] = strides[i + 1] * size[i + 1]
  first = begin + sum(at * stride for at, stride in zip(offsets, strides, strict=True))
  for number, row in enumerate(rows):
    at = first
    for i in range(run - 1, -1, -1):
      number, index = divmod(number, box.shape[i])
      at += index * strides[i]
    data = memoryview(row.reshape(-1).view(torch.uint8).numpy())
    while data:
      written = os.pwrite(handle, data, at)
      data, at = data[written:], at + written
