# SPDX-License-Identifier: Apache-2.0
"""Checkpoints straight into the local tensors of any layout, and back.

    tensors = reshard.hf.load("path", "vllm:tp=8", rank)       # {local tensor name: tensor}
    reshard.hf.save("out", layout, tensors, group=group)       # a Hugging Face checkpoint

Each rank reads only the bytes that it holds, and writes only its share of the files.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import reshard
from reshard import _core
from reshard._collective import gathered

__all__ = ["SaveReport", "load", "save"]

_ALIGNMENT = 64


def load(
  path: str | os.PathLike[str],
  layout: reshard.Layout | str,
  rank: int = 0,
  tensors: Mapping[str, Any] | None = None,
  *,
  prefix: str | None = None,
  merge: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
  threads: int = 0,
  progress: Callable[[str, int, int], object] | bool | None = False,
) -> dict[str, Any]:
  """Loads what one rank holds of a checkpoint. Not collective.

  path      the checkpoint's folder, its index or its only file: safetensors under Hugging Face names, plain
            or quantised, or the files that `reshard.convert` wrote for the ranks of any layout.
  layout    of the result, or its notation. Of the same model; it may cast, quantise or dequantise.
  rank      one of `layout.ranks`.
  tensors   to be filled, by the names of `layout.local(rank)`, with its shapes and dtypes. By
            default new ones are made.
  prefix    of a torch.distributed.checkpoint, as `reshard.open_model` takes it.
  merge     folders of LoRA adapters that are merged into the weights, as `reshard.open_model` takes them.
  threads   that read; 0: one for each core that this process may use.
  progress  a callable (phase, bytes done, bytes in all), which cancels by raising or by returning
            False; True: a bar of tqdm.

  Returns `tensors` as a dict or, if there are none, new tensors on host memory: torch's if torch is
  imported, else `reshard.Tensor`, which exports DLPack.

  Errors: IoError, CorruptError and InvalidArgumentError for the files; those of the plan between
  the checkpoint's layout and this one.
  """
  model = reshard.open_model(str(path), prefix=prefix, merge=merge)
  if isinstance(layout, str):
    layout = reshard.layout(layout, model)
  if tensors is None:
    buffers = reshard.RankBuffers.allocate(layout, [rank])
  else:
    buffers = reshard.RankBuffers(layout, {rank: tensors})
  reshard.load_weights(model, buffers, rank=rank, threads=threads, progress=progress)
  if tensors is not None:
    return dict(tensors)
  return {name: _exported(tensor) for name, tensor in buffers.tensors(rank).items()}


def _exported(tensor: Any) -> Any:
  import sys

  return tensor.torch() if "torch" in sys.modules else tensor


@dataclass(frozen=True)
class SaveReport:
  """What `save()` did."""

  bytes: int  #: of all tensors
  files: int  #: that hold them
  seconds: float  #: of the refit into the files
  #: Files of `companions` that were not copied, as `reshard.FileLeftOut`. Of a group, on rank 0.
  files_left_out: list[reshard.FileLeftOut] = field(default_factory=list)


def save(
  path: str | os.PathLike[str],
  layout: reshard.Layout,
  tensors: Mapping[str, Any] | Mapping[int, Mapping[str, Any]],
  *,
  group: reshard.ProcessGroup | None = None,
  max_shard_bytes: int = 5_000_000_000,
  companions: str | os.PathLike[str] | None = None,
  sync: bool = False,
  timeout: float = 600.0,
) -> SaveReport:
  """Writes a Hugging Face checkpoint from the local tensors of any plain layout.

  Every rank writes whole files, in parallel, which it receives from the ranks that have the pieces.
  The folder appears under its name once it is complete.

  path             the folder to write; must not exist. All ranks see it.
  layout           of the tensors.
  tensors          of this rank, by local name; without a group, {rank: {local name: tensor}}. Those of
                   a GPU are copied to the host's memory first.
  group            of all ranks of the layout (ranks 0 to size - 1); then the call is collective.
  max_shard_bytes  most tensor bytes in a file.
  companions       a folder whose config, tokenizer, code and other files that belong to a model are
                   copied; by default that of the model's config.json, if it is still there.
  sync             return only when all data is on the disk.
  timeout          seconds for each step that waits for other ranks.

  Errors: UnsupportedError for a quantised layout; IoError if the folder exists or the disk is full,
  on all ranks; those of a Session.
  """
  if layout.quantised:
    raise reshard.UnsupportedError("a quantised layout: save its plain values, then convert")
  final = Path(path)
  folder = final.with_name(final.name + ".partial")
  ranks = list(layout.ranks) if group is None else list(range(group.size))
  files = _cut(layout.model, len(ranks), max_shard_bytes)
  mine = [f for i, f in enumerate(files) if group is None or i % group.size == group.rank]
  first = group is None or group.rank == 0

  def agreed(step: Callable[[], None]) -> None:
    """Every rank runs its own step; an error on one of them is an error on all."""
    if group is None:
      step()
    else:
      gathered(group, step, "save", timeout)

  agreed(lambda: _make_folder(folder, final) if first else None)
  target = _layout_of(layout.model, files, ranks)
  with _Written() as written:
    agreed(lambda: written.open(folder, mine))
    seconds = _refit(layout, tensors, target, ranks, written, group, timeout)
    agreed(lambda: written.finish(sync))
  left_out: list[reshard.FileLeftOut] = []

  def publish() -> None:
    if first:
      left_out.extend(_publish(folder, final, files, companions, layout.model))

  agreed(publish)
  return SaveReport(sum(f.bytes for f in files), len(files), seconds, left_out)


def _make_folder(folder: Path, final: Path) -> None:
  if final.exists():
    raise reshard.IoError(f"{final} exists")
  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)


def _publish(
  folder: Path,
  final: Path,
  files: list[_File],
  companions: str | os.PathLike[str] | None,
  model: reshard.Model,
) -> list[reshard.FileLeftOut]:
  """Adds what is not tensors, and gives the folder its name. Returns what was not copied."""
  _write_index(folder, files)
  left_out = _copy_companions(folder, companions, model)
  folder.rename(final)
  return left_out


@dataclass
class _File:
  """One safetensors file: which tensors it holds, and where."""

  name: str = ""
  tensors: list[Any] = field(default_factory=list)
  head: bytes = b""
  offsets: dict[str, int] = field(default_factory=dict)

  @property
  def bytes(self) -> int:
    return sum(t.bytes for t in self.tensors)

  @property
  def size(self) -> int:
    return len(self.head) + self.bytes

  def plan(self) -> None:
    """The header, and the place of each tensor after it. Wide elements come first, so that every
    tensor is aligned to its own."""
    self.tensors.sort(key=lambda t: -_width(t))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for t in self.tensors:
      self.offsets[t.name] = at
      header[t.name] = {
        "dtype": t.dtype.name.upper(),
        "shape": list(t.stored_shape),
        "data_offsets": [at, at + t.bytes],
      }
      at += t.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    self.head = len(text).to_bytes(8, "little") + text


def _width(tensor: Any) -> int:
  elements = 1
  for n in tensor.shape:
    elements *= n
  return int(tensor.bytes // elements) if elements else 0


def _cut(model: reshard.Model, writers: int, most: int) -> list[_File]:
  """The files, in the order of the model: as many as writers, if that keeps all of them busy."""
  per_file = max(1, min(most, -(-model.tensors.bytes // max(1, writers))))
  files = [_File()]
  for tensor in model.tensors:
    if files[-1].tensors and files[-1].bytes + tensor.bytes > per_file:
      files.append(_File())
    files[-1].tensors.append(tensor)
  for number, file in enumerate(files, 1):
    file.name = f"model-{number:05}-of-{len(files):05}.safetensors"
    if len(files) == 1:
      file.name = "model.safetensors"
    file.plan()
  return files


def _layout_of(model: reshard.Model, files: list[_File], ranks: list[int]) -> reshard.Layout:
  """Each rank holds the whole tensors of its files."""
  builder = reshard.LayoutBuilder("files", model)
  for number, file in enumerate(files):
    for t in file.tensors:
      box = reshard.PlacedBox(t.name, [(0, n) for n in t.shape], [0] * len(t.shape))
      writer = ranks[number % len(ranks)]
      builder.add([writer], t.name, list(t.shape), t.dtype, parts=[box], casts=True)
  return builder.finish()


class _Written:
  """Files that are being written, as memory: a refit puts the bytes where they belong."""

  def __init__(self) -> None:
    self.tensors: dict[str, memoryview] = {}
    self._maps: list[mmap.mmap] = []

  def open(self, folder: Path, files: list[_File]) -> None:
    """Makes the files, with their headers."""
    for file in files:
      self._open(folder / file.name, file)

  def _open(self, path: Path, file: _File) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
      # All of it now: a full disk is an error here, and would be a signal later.
      os.posix_fallocate(handle, 0, file.size)
      memory = mmap.mmap(handle, file.size)
    finally:
      os.close(handle)
    self._maps.append(memory)
    view = memoryview(memory)
    view[: len(file.head)] = file.head
    for t in file.tensors:
      begin = len(file.head) + file.offsets[t.name]
      self.tensors[t.name] = view[begin : begin + t.bytes]

  def finish(self, sync: bool) -> None:
    """All data is in the files; with `sync`, on the disk."""
    if sync:
      for memory in self._maps:
        memory.flush()

  def __enter__(self) -> _Written:
    return self

  def __exit__(self, *_: object) -> None:
    self.tensors.clear()
    # Views may still be held by an exception's frames; the maps end with them.
    self._maps.clear()


def _refit(
  layout: reshard.Layout,
  tensors: Mapping[Any, Any],
  target: reshard.Layout,
  ranks: list[int],
  written: _Written,
  group: reshard.ProcessGroup | None,
  timeout: float,
) -> float:
  if group is None:
    source = reshard.RankBuffers(layout, dict(tensors)).on_host()
    held = {rank: {n: written.tensors[n] for n in target.slots_of(rank)} for rank in target.ranks}
    plan = reshard.plan(layout, target)
    refit = reshard.InProcessRefit(plan, source, reshard.RankBuffers(target, held))
    return float(refit.run().seconds)
  mine: Any = tensors if group.rank in set(layout.ranks) else None
  if mine is not None:
    # Files that are mapped cannot be written by a GPU. The session tells all ranks what is wrong.
    with contextlib.suppress(reshard.Error):
      mine = reshard.RankBuffers(layout, {group.rank: tensors}).on_host()
  with reshard.Session(
    group,
    source=layout,
    source_tensors=mine,
    target=target,
    target_tensors=written.tensors if group.rank in set(target.ranks) else None,
    timeout=timeout,
  ) as session:
    return float(session.refit(1).seconds)


def _write_index(folder: Path, files: list[_File]) -> None:
  if len(files) == 1:
    return
  index = {
    "metadata": {"total_size": sum(f.bytes for f in files)},
    "weight_map": {t.name: f.name for f in files for t in f.tensors},
  }
  (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _copy_companions(
  folder: Path, companions: str | os.PathLike[str] | None, model: reshard.Model
) -> list[reshard.FileLeftOut]:
  origin = Path(companions) if companions is not None else None
  if origin is None and model.config_path:
    # An example lies among those of other models.
    config = Path(model.config_path)
    origin = config.parent if config.name == "config.json" else config
  if origin is None or (companions is None and not origin.exists()):
    return []
  # What is not understood is saved as it was stored.
  return _core.copy_model_files(origin, folder, as_stored=model.config is None)
